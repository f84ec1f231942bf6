"""Which models each instance serves in the next minutes."""

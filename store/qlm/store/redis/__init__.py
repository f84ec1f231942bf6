"""Store on Redis."""

"""Placement: which models each instance serves in turns over the next minutes."""

"""Placement: the models that each instance serves in the next minutes."""

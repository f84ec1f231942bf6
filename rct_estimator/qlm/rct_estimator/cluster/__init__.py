"""Estimates of a whole cluster at once, on arrays."""

"""Costs of serving operations, and the host memory they share."""

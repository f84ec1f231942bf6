"""Swap times of plans, and the host memory that they depend on."""

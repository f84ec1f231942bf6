"""Decisions of a gateway: admission, forecasts, sessions; no clock, chance or I/O."""

"""Policies around plans: re-planning, reasons of misses, scale-up, and forecasts for new requests."""

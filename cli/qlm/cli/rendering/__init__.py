"""Render tiers: emulated, started, or attached to."""

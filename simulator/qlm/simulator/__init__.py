"""The simulated world around the production decisions, and the emulated engine."""

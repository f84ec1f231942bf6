"""Profiles computed from a model's configuration and the accelerator's data sheet, without a measurement."""

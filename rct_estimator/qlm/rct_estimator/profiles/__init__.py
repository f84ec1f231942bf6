"""Profiles of a model on an accelerator: their file, the duration of an iteration, and how to fit them."""

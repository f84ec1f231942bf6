"""Answers that a request constrains."""

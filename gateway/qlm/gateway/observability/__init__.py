"""Metrics and spans of a gateway."""

"""Measures an engine and fits its profile."""

"""Faults of trials, by what they hit."""

"""Checkers of event histories: pure functions that yield violations."""

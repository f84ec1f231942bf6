"""Counters of served work and of serving operations."""

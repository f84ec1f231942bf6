"""Decisions of an agent: events in, actions out; no clock, chance or I/O."""

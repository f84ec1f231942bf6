"""Runs an agent on an event loop: carries out its actions, reports metrics and spans."""

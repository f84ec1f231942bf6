"""Shared state as pure operations; every store implementation agrees with it."""

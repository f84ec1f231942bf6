"""Pacing without clock or I/O; the npm package `qlm-token-pacer` does the same, number for number."""

"""Benchmark of deadlines for tasks of several calls."""

"""Kinds of faults, by file: what `make chaos` does to its cluster."""

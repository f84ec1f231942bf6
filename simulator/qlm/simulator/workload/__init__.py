"""Workloads: traces in their published formats, generators, and streams that are merged into one."""

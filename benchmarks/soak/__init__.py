"""Steady load for a long time: memory, descriptors, threads, disk and latency must not drift."""

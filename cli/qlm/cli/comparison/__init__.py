"""Comparison of policies: the same requests under each of them, over seeds, loads and scenarios."""

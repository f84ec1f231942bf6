"""The plan: which request groups run where, in which order, and at what expected cost."""

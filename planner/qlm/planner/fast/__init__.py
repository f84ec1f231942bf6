"""The fast solver: anytime local search over virtual queues in compiled code."""

"""Offline proof of how far a plan is from the best one: column generation over whole queues."""

"""Visits: the times between two model swaps of an instance, and when each ends."""

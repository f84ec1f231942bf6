"""The cluster as the live page shows it: pure snapshots, and the feed that makes them for all viewers."""

"""Store in process memory, with an optional journal on disk."""

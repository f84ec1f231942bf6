"""Formats of what outlives a process: messages, records, and their optional fields."""

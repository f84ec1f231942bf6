"""Broker on SQLite."""

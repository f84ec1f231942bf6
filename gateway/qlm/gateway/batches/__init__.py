"""Batches: their lines as durable requests, and their answers as files."""

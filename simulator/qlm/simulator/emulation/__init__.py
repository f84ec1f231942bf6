"""Emulated engine: the engine model in real time, behind vLLM's HTTP API."""

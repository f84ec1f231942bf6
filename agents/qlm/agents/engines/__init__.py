"""Engines of an instance: vLLM processes, attached servers, weights files in the page cache."""

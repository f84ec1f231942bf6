"""Client of vLLM 0.32, and readers of what it answers."""

"""The engine model in real time, behind a server that speaks the API of vLLM."""

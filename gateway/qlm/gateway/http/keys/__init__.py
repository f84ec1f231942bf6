"""API keys over HTTP: asked of clients, and managed by operators."""

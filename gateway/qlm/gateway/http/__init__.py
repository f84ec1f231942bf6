"""HTTP endpoints: OpenAI-compatible, service and admin."""

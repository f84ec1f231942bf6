"""API keys of clients: made, looked up, and asked of callers."""

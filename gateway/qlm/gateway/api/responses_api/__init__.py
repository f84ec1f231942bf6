"""OpenAI's Responses API: its bodies, its items, its response object and its events."""

"""Anthropic's Messages API: its bodies, its message object, its events and its errors."""

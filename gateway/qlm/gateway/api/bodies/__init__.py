"""Bodies of requests that are no generations: API keys, tokenizing."""

"""Bodies of requests that are no generations (API keys, tokenizing), and parts of those that are."""

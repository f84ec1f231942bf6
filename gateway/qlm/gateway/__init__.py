"""The front door: OpenAI-compatible HTTP and gRPC, admission, tokenizing, streaming."""

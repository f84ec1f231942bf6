"""The gateway: OpenAI-compatible HTTP and gRPC, admission control, tokenization, streaming."""

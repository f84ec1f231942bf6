"""The engine model: what an LLM engine does with requests and how long that takes, without a clock."""

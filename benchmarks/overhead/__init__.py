"""`make bench ARGS="overhead"`: throughput of an engine kept full by an agent, and by a minimal client."""

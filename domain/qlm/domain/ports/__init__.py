"""The ports: what QLM asks of the world. Each has a contract suite that runs on every implementation."""

"""`make chaos`: kill every process in turn under load, and account for every accepted request."""

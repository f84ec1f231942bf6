"""Tasks of several calls: what a task's deadline asks of each call, and what is learned for it."""

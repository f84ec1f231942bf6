"""`make bench ARGS="overhead"`: an engine kept full by an agent, and by the simplest client."""

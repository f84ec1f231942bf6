"""The experience of a reader of a stream: lateness, its measures in four papers, and token deadlines."""

"""The agent as a host of batch policies: it aborts generations and resumes them, on any engine."""

"""Several answers to one call, over HTTP."""

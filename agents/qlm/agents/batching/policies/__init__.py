"""The batch policies, one per file; `registry` has them by name."""

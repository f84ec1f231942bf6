"""Small experiments that show defects of planning and preemption while requests arrive; see README.md."""

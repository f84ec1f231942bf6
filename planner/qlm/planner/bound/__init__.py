"""Lower bound on the penalty of every plan of a problem; see docs/planner-bound.md."""

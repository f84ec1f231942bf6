"""What every plan of a problem costs at least, whatever it does; see docs/planner-bound.md."""

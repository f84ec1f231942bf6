"""Decisions of the controller: observe, group, estimate, build the problem, compare plans."""

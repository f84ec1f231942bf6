"""Compilation of the planner's functions."""

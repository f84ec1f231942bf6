"""Names of the planning methods, for command lines: the methods themselves take long to import."""

from typing import Final

METHOD_NAMES: Final = (
    "fast",
    "exact",
    "edf",
    "fcfs",
    "priority-fcfs",
    "sjf",
    "shepherd",
    "round-robin",
    "most-memory",
    "random",
    "group-greedy",
)
"""Keys of `qlm.planner.methods.METHODS`, in their order."""

DEFAULT_METHOD: Final = "fast"
"""Default method: it plans any problem."""

KEPT: Final = "kept"
"""Stands in a plan for the method if the plan before was kept, since none is better."""

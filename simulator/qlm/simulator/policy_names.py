"""Names of policies and rules, for what only lists them: `policies` and `rules` import all planners."""

from typing import Final

POLICY_NAMES: Final = (
    "edf",
    "qlm",
    "fcfs",
    "priority-fcfs",
    "sjf",
    "round-robin",
    "most-memory",
    "random",
    "group-greedy",
    "shepherd",
)
"""Those of `policies.POLICIES`, in its order."""

RULE_NAMES: Final = (
    "evict",
    "demote",
    "hold",
    "cluster",
    "whole",
    "strands",
    "mixed",
    "bounded",
    "unbounded",
    "rules",
    "visits",
    "placed",
    "unplaced",
)
"""Those of `rules.RULES`, in its order."""

"""The result of a proof, and its progress."""

from dataclasses import dataclass
from typing import Final, Literal

from qlm.planner.problem import Plan

TIME_LIMIT_S: Final = 600.0
"""Default time limit of a proof."""

Ended = Literal["proven", "converged", "limit"]
"""Why it ended: the plan is proven to be the best, the relaxation has no better bound, or time is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """State of a proof.

    Attributes:
        stage: What is done.
        bound_s: Best bound so far.
        took_s: Time since the beginning.
    """

    stage: str
    bound_s: float
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A plan with a proof of how far it is from the best one.

    Attributes:
        plan: With its penalty and the bound.
        ended: Why it ended.
        rounds: Rounds of column generation.
        columns: Queues in the master program at last.
        apart: Groups with a deadline that count alone, since their service is shorter than a step.
        took_s: Time that the bound took.
    """

    plan: Plan
    ended: Ended
    rounds: int
    columns: int
    apart: int
    took_s: float

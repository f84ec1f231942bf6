"""A failed planner costs one plan only: that plan is made by earliest deadline first."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from qlm.domain.errors import QlmError
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.problem import Plan, Problem
from qlm.planner.verify.constraints import placement_violations
from qlm.planner.verify.problem_index import ProblemIndex

REPORTED_CHARACTERS: Final = 200
"""Characters of an error in the method of a plan."""


class FailureKind(StrEnum):
    """Kind of failure of a planner."""

    RAISED = "raised"
    """It raised an exception."""
    SLOW = "slow"
    """It took longer than it may."""
    NOT_FINITE = "not_finite"
    """The penalty of its plan is no finite number."""
    INVALID = "invalid"
    """Its plan leaves out a group, repeats one, or places one where it cannot run."""
    PLACEMENT = "placement"
    """The placement of models raised an exception; the last one stands."""


class PlanTooSlowError(QlmError):
    """A planner took longer than it may."""


class UnusablePlanError(QlmError):
    """A plan that cannot be applied."""

    def __init__(self, kind: FailureKind, why: str) -> None:
        super().__init__(why)
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerFailure:
    """A failure of a planner."""

    kind: FailureKind
    error: Exception

    @property
    def text(self) -> str:
        """The failure in words."""
        error = self.error
        words = str(error) if isinstance(error, QlmError) else repr(error)
        return f"{self.kind}: {words}"[:REPORTED_CHARACTERS]


def plan_or_fall_back(
    planner: Callable[[Problem], Plan], problem: Problem
) -> tuple[Plan, PlannerFailure | None]:
    """Plan; if the planner fails, plan by earliest deadline first instead.

    Returns:
        The plan, and the failure of the planner if there was one; the method of the plan says so as well.
    """
    try:
        plan = planner(problem)
        check_usable(problem, plan)
    except Exception as error:
        failure = PlannerFailure(kind=_kind(error), error=error)
        plan = plan_edf(problem)
        return replace(plan, method=f"{plan.method}, since the planner failed ({failure.text})"), failure
    return plan, None


def _kind(error: Exception) -> FailureKind:
    if isinstance(error, UnusablePlanError):
        return error.kind
    return FailureKind.SLOW if isinstance(error, PlanTooSlowError) else FailureKind.RAISED


def check_usable(problem: Problem, plan: Plan) -> None:
    """Check that a plan can be applied; its order is not judged: some planners ignore priorities.

    Raises:
        UnusablePlanError: It cannot.
    """
    if plan.penalty_s is not None and not math.isfinite(plan.penalty_s):
        raise UnusablePlanError(FailureKind.NOT_FINITE, f"the penalty of the plan is {plan.penalty_s}")
    violation = next(placement_violations(ProblemIndex.of(problem), plan), None)
    if violation is not None:
        raise UnusablePlanError(FailureKind.INVALID, f"{violation.constraint}: {violation.detail}")

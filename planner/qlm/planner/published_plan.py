"""The latest plan with its problem and time, as the controller publishes it for operators."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from qlm.domain.formats.published import Published
from qlm.domain.ports.published import PublishedKind
from qlm.planner.limits import CLOCK_MAX_S
from qlm.planner.plain_reader import Reader
from qlm.planner.plan_json import plan_from_plain, plan_to_plain
from qlm.planner.problem import Plan, Problem
from qlm.planner.problem_json import problem_from_plain, problem_to_plain

VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPlan:
    """The latest plan.

    Attributes:
        at_ms: Time of the plan, milliseconds since the epoch: the `now_s` of its problem.
    """

    at_ms: int
    problem: Problem
    plan: Plan


def published_plan_to_plain(published: PublishedPlan) -> dict[str, Any]:
    """Write it as dicts, lists, numbers and strings."""
    return {
        "version": VERSION,
        "at_ms": published.at_ms,
        "problem": problem_to_plain(published.problem),
        "plan": plan_to_plain(published.plan),
    }


def published_plan_from_plain(plain: Mapping[str, Any]) -> PublishedPlan:
    """Read what `published_plan_to_plain` wrote.

    Raises:
        InvalidValueError: A field is missing, unknown, of the wrong type or out of range; it is named.
    """
    reader = Reader("kept plan", plain)
    reader.version(VERSION)
    at_ms = reader.integer("at_ms", least=0, most=round(1000 * CLOCK_MAX_S))
    problem = problem_from_plain(reader.take("problem"))
    plan = plan_from_plain(reader.take("plan"), problem)
    reader.done()
    return PublishedPlan(at_ms=at_ms, problem=problem, plan=plan)


PLAN: Final = Published(
    kind=PublishedKind.PLAN, to_plain=published_plan_to_plain, from_plain=published_plan_from_plain
)

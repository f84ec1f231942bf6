"""A group or a request explained by the live plan, for `qlm plan explain` and the live page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from qlm.cli.inspect.layout import Table
from qlm.cli.plans.batching_text import batching_lines, policy_of
from qlm.cli.plans.live import age
from qlm.cli.plans.request import find_place
from qlm.cli.plans.request_text import request_text
from qlm.cli.plans.tables import explanation, violated
from qlm.domain.ids import GroupId
from qlm.planner.problem import Objective, Problem
from qlm.planner.published_plan import PublishedPlan
from qlm.planner.verify.explain import explain
from qlm.planner.verify.referee import Report

PLACES_SHOWN: Final = 10


def group_sentences(
    name: str, kept: PublishedPlan, now_s: float, objective: Objective = "requests"
) -> Iterator[Table | str]:
    """Explain the position of a group of a plan; `now_s` is in seconds since the epoch.

    Raises:
        InvalidValueError: The plan has no such group.
    """
    explained = explain(kept.problem, kept.plan, GroupId(name), objective=objective)
    yield age(kept, now_s)
    yield from explanation(kept.problem, explained, PLACES_SHOWN)


def request_sentences(
    request: Mapping[str, Any],
    kept: PublishedPlan | None,
    classmates: Sequence[Mapping[str, Any]],
    configured: Sequence[Mapping[str, Any]],
    now_s: float,
    objective: Objective = "requests",
) -> Iterator[Table | str]:
    """Explain where a request is.

    Args:
        request: State of the request, as returned by the gateway.
        kept: The latest plan, if there is any.
        classmates: Groups of its class, as returned by the gateway, in order of arrival.
        configured: The configured instances, as returned by the gateway.
        now_s: The present, seconds since the epoch.
        objective: Objective of the costs.
    """
    found = find_place(request, kept, classmates, objective)
    yield from request_text(request, kept, found, PLACES_SHOWN, now_s)
    yield from batching_lines(request, policy_of(configured, request["instance"]), now_s)


def unservable(report: Report) -> str | None:
    """Describe the first group that a plan assigns to no instance able to serve it, if any."""
    serious = [each for each in report.violations if each.constraint in ("each_group_once", "runs_there")]
    return next(violated(serious[:1]), None)


def has_group(problem: Problem, name: str) -> bool:
    """Return whether a problem has a group."""
    return any(each.id == name for each in problem.groups)

"""The chart of a plan: each virtual queue as bars over time."""

import math
from collections.abc import Mapping
from itertools import groupby
from typing import Final

from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, InstanceId
from qlm.gateway.api.fields.live import PlanChart, PlannedBar, PlannedLane
from qlm.planner.problem import Instance, PlannedGroup, Problem
from qlm.planner.published_plan import PublishedPlan
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.referee import GroupRow, verify

INTERVAL_SDS: Final = 1.645
"""Standard deviations from the mean to either end of a 90 % interval of a normal distribution."""

Rows = Mapping[InstanceId, list[GroupRow]]


def plan_chart(published: PublishedPlan, classes: Mapping[GroupId, RequestClass]) -> PlanChart:
    """Return the chart of a plan, with the expected times of the referee.

    Args:
        published: The plan with its problem.
        classes: The class of each group that still is there.
    """
    problem, plan = published.problem, published.plan
    report = verify(problem, plan)
    rows: Rows = {id: list(each) for id, each in groupby(report.rows, key=lambda row: row.instance)}
    index = ProblemIndex.of(problem)
    wanted = any(group.deadline_s is not None for group in problem.groups)
    return {
        "at_ms": published.at_ms,
        "method": plan.method,
        "expected_attainment": report.expected_attainment if wanted else None,
        "late_requests": _rounded(report.late_requests),
        "lanes": [
            _lane(problem, each, [_bar(index, row, classes) for row in rows.get(each.id, ())])
            for each in sorted(problem.instances, key=lambda each: each.id)
        ],
        "unplaceable": plan.unplaceable,
    }


def host_used_bytes(problem: Problem, instance: Instance) -> int:
    """Return the host memory of the models that sleep on an instance."""
    costs = problem.kinds[instance.kind].models
    return sum(
        costs[model].process_bytes + (0 if model in instance.unloaded_models else costs[model].weights_bytes)
        for model in instance.warm_models
        if model in costs
    )


def _lane(problem: Problem, instance: Instance, groups: list[PlannedBar]) -> PlannedLane:
    return {
        "instance": instance.id,
        "kind": instance.kind,
        "loaded_model": instance.loaded_model,
        "busy_s": _rounded(instance.busy.mean),
        "host_used_bytes": host_used_bytes(problem, instance),
        "host_bytes": problem.kinds[instance.kind].host_memory_bytes,
        "groups": groups,
    }


def _bar(index: ProblemIndex, row: GroupRow, classes: Mapping[GroupId, RequestClass]) -> PlannedBar:
    group = index.groups[row.group]
    cls = classes.get(row.group)
    spread_s = INTERVAL_SDS * math.sqrt(row.completion.var)
    return {
        "id": row.group,
        "model": group.model,
        "slo_class": None if cls is None else cls.slo,
        "late": cls is not None and cls.late,
        "priority": group.priority,
        "requests": row.requests,
        "swap": row.swap,
        "swap_s": _rounded(row.swap_s),
        "start_s": _rounded(row.start.mean),
        "leaves_s": _rounded(row.start.mean + _service_s(index, row, group)),
        "end_s": _rounded(row.completion.mean),
        "end_early_s": _rounded(max(row.start.mean, row.completion.mean - spread_s)),
        "end_late_s": _rounded(row.completion.mean + spread_s),
        "deadline_s": None if row.deadline_s is None else _rounded(row.deadline_s),
        "p_met": _rounded(row.p_met),
        "late_requests": _rounded(row.late_requests),
        "moved": row.moved,
    }


def _service_s(index: ProblemIndex, row: GroupRow, group: PlannedGroup) -> float:
    return group.time[index.instances[row.instance].kind].service.mean


def _rounded(value: float) -> float:
    """Round to what can be seen, so that an event is short."""
    return round(value, 3)

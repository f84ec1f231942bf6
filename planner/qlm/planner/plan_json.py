"""Plans as JSON-like data, in their published format; unknown fields are refused."""

import math
from collections.abc import Mapping
from typing import Any, Final, get_args

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId, InstanceId
from qlm.planner.limits import GROUPS_MAX, INSTANCES_MAX, KINDS_MAX
from qlm.planner.plain_reader import Reader, names
from qlm.planner.problem import VERSION, Objective, Plan, Problem, ScaleUp

_LARGEST: Final = math.nextafter(math.inf, 0)


def plan_to_plain(plan: Plan) -> dict[str, Any]:
    """Write a plan as dicts, lists, numbers and strings."""
    # Only where it differs: earlier versions refuse a field that they do not know.
    of_paper = {} if plan.objective == "requests" else {"objective": plan.objective}
    return {
        "version": VERSION,
        "queues": {instance: list(queue) for instance, queue in plan.queues.items()},
        "penalty_s": plan.penalty_s,
        "lower_bound_s": plan.lower_bound_s,
        "expected_attainment": plan.expected_attainment,
        "unplaceable": list(plan.unplaceable),
        "method": plan.method,
        "solve_s": plan.solve_s,
        "scale_up": [{"kind": each.kind, "count": each.count} for each in plan.scale_up],
        **of_paper,
    }


def plan_from_plain(plain: Mapping[str, Any], problem: Problem) -> Plan:
    """Read a plan of a problem; only `version` and `queues` are required.

    `qlm.planner.verify` checks its feasibility.

    Raises:
        InvalidValueError: A field is missing, unknown, of the wrong type or out of range, names what the
            problem does not have, or a group is placed twice; it is named.
    """
    reader = Reader("plan", plain)
    reader.version(VERSION)
    method = reader.take("method", "")
    if not isinstance(method, str):
        raise InvalidValueError("plan.method", method, "a string")
    objective = reader.take("objective", "requests")
    if objective not in get_args(Objective):
        raise InvalidValueError("plan.objective", objective, " or ".join(get_args(Objective)))
    plan = Plan(
        queues=_queues(reader, problem),
        unplaceable=tuple(GroupId(each) for each in reader.names("unplaceable", GROUPS_MAX, ())),
        method=method,
        objective=objective,
        penalty_s=reader.number_or_none("penalty_s", least=-_LARGEST, most=_LARGEST),
        lower_bound_s=reader.number_or_none("lower_bound_s", least=-_LARGEST, most=_LARGEST),
        expected_attainment=reader.number_or_none("expected_attainment", least=0.0, most=1.0),
        solve_s=reader.number_or_none("solve_s", least=0.0, most=_LARGEST),
        scale_up=_scale_up(reader, problem),
    )
    reader.done()
    _check_groups(plan, problem)
    return plan


def _queues(reader: Reader, problem: Problem) -> dict[InstanceId, tuple[GroupId, ...]]:
    known = {instance.id for instance in problem.instances}
    queues = {}
    for instance, queue in reader.mapping("queues", INSTANCES_MAX).items():
        if instance not in known:
            raise InvalidValueError("plan.queues", instance, "instances of the problem only")
        groups = names(f"plan.queues.{instance}", queue, GROUPS_MAX)
        queues[InstanceId(instance)] = tuple(GroupId(group) for group in groups)
    return queues


def _check_groups(plan: Plan, problem: Problem) -> None:
    known = {group.id for group in problem.groups}
    lists = {f"plan.queues.{instance}": queue for instance, queue in plan.queues.items()}
    seen: dict[GroupId, str] = {}
    for where, groups in (*lists.items(), ("plan.unplaceable", plan.unplaceable)):
        for group in groups:
            if group not in known:
                raise InvalidValueError(where, group, "groups of the problem only")
            if group in seen:
                raise InvalidValueError(where, group, f"each group once; it is also in {seen[group]}")
            seen[group] = where


def _scale_up(reader: Reader, problem: Problem) -> tuple[ScaleUp, ...]:
    read: dict[str, ScaleUp] = {}
    for at, each in enumerate(reader.sequence("scale_up", KINDS_MAX, ())):
        where = f"plan.scale_up[{at}]"
        item = Reader(where, each)
        kind = item.text("kind")
        if kind not in problem.kinds:
            raise InvalidValueError(f"{where}.kind", kind, "a kind of the problem")
        if kind in read:
            raise InvalidValueError(f"{where}.kind", kind, "each kind once")
        read[kind] = ScaleUp(kind=kind, count=item.integer("count", least=1, most=INSTANCES_MAX))
        item.done()
    return tuple(read.values())

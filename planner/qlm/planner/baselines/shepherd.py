"""SHEPHERD's integer program: batches served in time, their placement and order.

The QLM paper compares itself with SHEPHERD (Zhang et al., NSDI 2023) as "an ILP formulation for ordering and
placement" that "assumes fixed batches with deterministic execution times" (section 8). It gives no
formulation; `docs/planner-baselines.md` says how this one was read from that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import nsmallest
from typing import Final

from qlm.planner.baselines.earliest_start import EarliestStarts
from qlm.planner.baselines.edf import beside_its_model
from qlm.planner.baselines.list_schedule import place
from qlm.planner.baselines.orders import by_deadline
from qlm.planner.baselines.schedule import Schedule, empty_schedules, is_late, queues_of
from qlm.planner.baselines.shepherd_ilp import serve_most
from qlm.planner.problem import GroupTime, Plan, PlannedGroup, Problem
from qlm.rct_estimator.normal import NOTHING, Normal

WINDOW_GROUPS_MAX: Final = 12
"""Most groups of one program; more are planned in windows of this size, by deadline."""

WINDOW_INSTANCES_MAX: Final = 12
"""Most instances of one program: those that list scheduling would use, then those that are free first."""

PROGRAMS_MAX: Final = 100
"""Most programs of one plan; later windows are list-scheduled."""

ITERATIONS_MAX: Final = 20_000
"""Iterations of linear programs after which later windows of the plan are list-scheduled. Unlike a limit of
time, it ends the same plan at the same place on every machine."""

NODES_MAX: Final = 100
"""Most nodes of the search tree of one program; the incumbent is taken."""


def plan_shepherd(problem: Problem, *, time_limit_s: float | None = None, nodes_max: int = NODES_MAX) -> Plan:
    """Serve as many requests in time as an integer program finds possible; all others follow.

    Groups are fixed batches that take their mean service time and tail, one after the other. Those with a
    deadline are planned by deadline, in windows of at most `WINDOW_GROUPS_MAX` groups, each behind the
    windows before it. A window is list-scheduled if that misses none of its deadlines; otherwise the
    program selects the groups to serve. Groups that it leaves out, and those without a deadline, are
    list-scheduled at the end.

    Args:
        problem: Groups and fleet.
        time_limit_s: Limit of all programs together, in equal parts; with it, results depend on the machine.
            Without it, `ITERATIONS_MAX` bounds the work.
        nodes_max: Most nodes of each program.

    Returns:
        A plan with each placeable group on exactly one queue; deterministic, whatever the input order,
        unless a time limit was met.
    """
    fixed = _fixed_batches(problem)
    schedules = empty_schedules(fixed)
    earliest = EarliestStarts(schedules, (group.model for group in fixed.groups))
    runs = [group for group in sorted(fixed.groups, key=by_deadline) if earliest.first(group) is not None]
    windows = list(_windows([group for group in runs if group.deadline_s is not None]))
    share_s = None if time_limit_s is None else time_limit_s / max(1, min(PROGRAMS_MAX, len(windows)))
    programs = iterations = 0
    for window in windows:
        more = programs < PROGRAMS_MAX and iterations < ITERATIONS_MAX
        served, used = _serve(window, schedules, fixed.now_s, nodes_max if more else 0, share_s)
        programs += used is not None
        iterations += used or 0
        for schedule, groups in zip(schedules, served, strict=True):
            for group in groups:
                schedule.insert(len(schedule.groups), group)
    placed = {group.id for schedule in schedules for group in schedule.groups}
    place(schedules, [g for g in runs if g.id not in placed], beside_its_model, now_s=fixed.now_s)
    able = {group.id for group in runs}
    return Plan(
        queues=queues_of(schedules),
        unplaceable=tuple(sorted(group.id for group in problem.groups if group.id not in able)),
        method="shepherd",
    )


def _fixed_batches(problem: Problem) -> Problem:
    """Replace times by certain ones without overlap: a batch takes its mean service time and tail."""
    known: dict[int, dict[str, GroupTime]] = {}

    def fixed(group: PlannedGroup) -> dict[str, GroupTime]:
        # Groups of a class share one `time`.
        if id(group.time) not in known:
            known[id(group.time)] = {
                kind: GroupTime(service=Normal(time.service.mean + time.tail.mean), tail=NOTHING)
                for kind, time in group.time.items()
            }
        return known[id(group.time)]

    return replace(problem, groups=tuple(replace(g, time=fixed(g)) for g in problem.groups))


def _windows(groups: Sequence[PlannedGroup]) -> Iterator[Sequence[PlannedGroup]]:
    for start in range(0, len(groups), WINDOW_GROUPS_MAX):
        yield groups[start : start + WINDOW_GROUPS_MAX]


def _serve(
    window: Sequence[PlannedGroup],
    schedules: Sequence[Schedule],
    now_s: float,
    nodes_max: int,
    share_s: float | None,
) -> tuple[list[list[PlannedGroup]], int | None]:
    """Return what each instance serves in time, in order, and the iterations if that took a program."""
    tried = [_behind(schedule) for schedule in schedules]
    place(tried, window, beside_its_model, now_s=now_s)
    listed = [_in_time(schedule, now_s) for schedule in tried]
    if _requests(listed) == _requests([window]) or not nodes_max:
        return listed, None
    used = nsmallest(
        WINDOW_INSTANCES_MAX,
        range(len(schedules)),
        key=lambda at: (not tried[at].groups, schedules[at].last.clock_s, at),
    )
    solved = serve_most(
        window, [schedules[at] for at in used], now_s=now_s, nodes_max=nodes_max, time_limit_s=share_s
    )
    if solved.served is None:
        return listed, solved.iterations
    served: list[list[PlannedGroup]] = [[] for _ in schedules]
    for at, groups in zip(used, solved.served, strict=True):
        served[at] = groups
    kept = [
        _in_time(_behind(schedule, groups), now_s) for schedule, groups in zip(schedules, served, strict=True)
    ]
    return (served if _requests(kept) > _requests(listed) else listed), solved.iterations


def _behind(schedule: Schedule, groups: Sequence[PlannedGroup] = ()) -> Schedule:
    """Return a schedule that continues another one."""
    tried = Schedule(schedule.instance, schedule.kind, schedule.swaps, schedule.last)
    for group in groups:
        tried.insert(len(tried.groups), group)
    return tried


def _in_time(schedule: Schedule, now_s: float) -> list[PlannedGroup]:
    return [
        g for g, state in zip(schedule.groups, schedule.states, strict=True) if not is_late(g, state, now_s)
    ]


def _requests(served: Sequence[Sequence[PlannedGroup]]) -> int:
    return sum(group.requests for groups in served for group in groups)

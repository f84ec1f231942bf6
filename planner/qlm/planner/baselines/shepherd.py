"""SHEPHERD's integer program: which batches are served in time, where, and in which order.

The QLM paper compares itself with SHEPHERD (Zhang et al., NSDI 2023) as "an ILP formulation for ordering and
placement" that "assumes fixed batches with deterministic execution times" (section 8). It gives no
formulation; `docs/planner-baselines.md` says how this one was read from that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import nsmallest
from typing import Final

from qlm.planner.baselines.edf import beside_its_model
from qlm.planner.baselines.lane import Lane, is_late, lanes_of, queues_of
from qlm.planner.baselines.list_schedule import place
from qlm.planner.baselines.openings import Openings
from qlm.planner.baselines.orders import arrival
from qlm.planner.baselines.shepherd_ilp import serve_most
from qlm.planner.problem import GroupTime, Plan, PlannedGroup, Problem
from qlm.rct_estimator.normal import NOTHING, Normal

WINDOW_GROUPS_MAX: Final = 12
"""Groups of one program; more are planned in windows of so many, by deadline."""

WINDOW_INSTANCES_MAX: Final = 12
"""Instances of one program: those that list scheduling would use, then those that are free first."""

PROGRAMS_MAX: Final = 100
"""Programs of one plan; later windows are served as list scheduling has them."""

NODES_MAX: Final = 100
"""Nodes of the search tree of one program; the best plan found by then is taken."""


def plan_shepherd(problem: Problem, *, time_limit_s: float | None = None, nodes_max: int = NODES_MAX) -> Plan:
    """Serve as many requests in time as an integer program finds possible; all others follow.

    Groups are fixed batches that take their mean drain and tail, one after the other. Those with a deadline
    are planned by deadline, in windows of at most `WINDOW_GROUPS_MAX`, each behind what the windows before
    it decided. List scheduling serves a window if it misses none of its deadlines; otherwise the program
    chooses what is served. What it leaves out, and what has no deadline, is list-scheduled behind that.

    Args:
        problem: What waits, and the fleet.
        time_limit_s: For all programs together, in equal parts; with it, results depend on the machine.
        nodes_max: Nodes of each program.

    Returns:
        A plan with each placeable group on exactly one queue; deterministic, whatever the input order,
        unless a time limit was met.
    """
    fixed = _fixed_batches(problem)
    lanes = lanes_of(fixed)
    openings = Openings(lanes, (group.model for group in fixed.groups))
    runs = [group for group in sorted(fixed.groups, key=arrival) if openings.first(group) is not None]
    windows = list(_windows([group for group in runs if group.deadline_s is not None]))
    share_s = None if time_limit_s is None else time_limit_s / max(1, min(PROGRAMS_MAX, len(windows)))
    programs = 0
    for window in windows:
        served, solved = _serve(
            window, lanes, fixed.now_s, nodes_max if programs < PROGRAMS_MAX else 0, share_s
        )
        programs += solved
        for lane, groups in zip(lanes, served, strict=True):
            for group in groups:
                lane.insert(len(lane.groups), group)
    placed = {group.id for lane in lanes for group in lane.groups}
    place(lanes, [g for g in runs if g.id not in placed], beside_its_model, now_s=fixed.now_s)
    able = {group.id for group in runs}
    return Plan(
        queues=queues_of(lanes),
        unplaceable=tuple(sorted(group.id for group in problem.groups if group.id not in able)),
        method="shepherd",
    )


def _fixed_batches(problem: Problem) -> Problem:
    """Let nothing overlap, and no time vary: a batch takes its drain and its tail."""
    known: dict[int, dict[str, GroupTime]] = {}

    def fixed(group: PlannedGroup) -> dict[str, GroupTime]:
        # Groups of a class share one `time`.
        if id(group.time) not in known:
            known[id(group.time)] = {
                kind: GroupTime(drain=Normal(time.drain.mean + time.tail.mean), tail=NOTHING)
                for kind, time in group.time.items()
            }
        return known[id(group.time)]

    return replace(problem, groups=tuple(replace(g, time=fixed(g)) for g in problem.groups))


def _windows(groups: Sequence[PlannedGroup]) -> Iterator[Sequence[PlannedGroup]]:
    for start in range(0, len(groups), WINDOW_GROUPS_MAX):
        yield groups[start : start + WINDOW_GROUPS_MAX]


def _serve(
    window: Sequence[PlannedGroup], lanes: Sequence[Lane], now_s: float, nodes_max: int, share_s: float | None
) -> tuple[list[list[PlannedGroup]], bool]:
    """Choose what each lane serves in time, in order, and tell whether that took a program."""
    ahead = [_behind(lane) for lane in lanes]
    place(ahead, window, beside_its_model, now_s=now_s)
    listed = [_in_time(lane, now_s) for lane in ahead]
    if _requests(listed) == _requests([window]) or not nodes_max:
        return listed, False
    used = nsmallest(
        WINDOW_INSTANCES_MAX,
        range(len(lanes)),
        key=lambda at: (not ahead[at].groups, lanes[at].last.clock_s, at),
    )
    solved = serve_most(
        window, [lanes[at] for at in used], now_s=now_s, nodes_max=nodes_max, time_limit_s=share_s
    )
    if solved is None:
        return listed, True
    served: list[list[PlannedGroup]] = [[] for _ in lanes]
    for at, groups in zip(used, solved, strict=True):
        served[at] = groups
    kept = [_in_time(_behind(lane, groups), now_s) for lane, groups in zip(lanes, served, strict=True)]
    return (served if _requests(kept) > _requests(listed) else listed), True


def _behind(lane: Lane, groups: Sequence[PlannedGroup] = ()) -> Lane:
    """Continue a lane with other groups."""
    ahead = Lane(lane.instance, lane.kind, lane.last)
    for group in groups:
        ahead.insert(len(ahead.groups), group)
    return ahead


def _in_time(lane: Lane, now_s: float) -> list[PlannedGroup]:
    return [g for g, moment in zip(lane.groups, lane.moments, strict=True) if not is_late(g, moment, now_s)]


def _requests(served: Sequence[Sequence[PlannedGroup]]) -> int:
    return sum(group.requests for groups in served for group in groups)

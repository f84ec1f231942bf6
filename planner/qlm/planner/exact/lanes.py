"""The exact solver's problem as arrays: groups to place, and lanes to place them on.

A lane is a set of identical instances: exchanging the queues of two of them does not change a plan's penalty.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qlm.domain.ids import GroupId
from qlm.planner.arrays import COLD, NONE, Bools, Floats, Ints, ProblemArrays, problem_arrays, row_major
from qlm.planner.exact.scenarios import Scenarios, alike_in_time
from qlm.planner.problem import Objective, Problem
from qlm.planner.swapping.compiled import Memory, Rows, always_fits, first_rows, memory_of, of_kind, row_size


class Lane(NamedTuple):
    """Identical instances as compiled code sees them.

    N groups to place, M models; seconds from now. C time classes: groups alike in time form one, with at
    most R members.
    Times have K values each: those of K scenarios, or of a normal distribution mean, own variance, and
    standard deviations by the errors that groups share: that of the speed, then of each class; none without
    such errors.

    Attributes:
        model, requests, deadline_s, priority: Model, number of requests, deadline and priority of each
            group; (N,).
        runs: True for each group that runs here; (N,).
        time_class: Time class of each group; (N,).
        before: Preceding equal group, or `NONE`; (N,). Equal groups are put in id order.
        price_s: Price of the move to this lane; (N,).
        service_s, tail_s: Times of the r-th group served of a time class; (C, R, K).
        memory: Host memory and swap times of the lane's kind alone (K is 1).
        unload_s: Time to unload each model; (M,).
        loaded: Model loaded at first, or `NONE`.
        leave_s: What a swap discards if the first group needs another model.
        asleep: What sleeps at first; (1, 1, H), a row as in `swapping.compiled`.
        tier: Tier of each model at first; (M,).
        sleeps_in: Tier of each model once it was used, if none is evicted; (M,).
        evicts: Host memory is too small for all models that may be used, so that what sleeps depends on their
            order.
        busy_s: Time until the present batch has ended; (K,).
        sampled: Times are values of scenarios, not mean and variance.
        miss_weight_s: Price of one missed deadline.
        allowed: Expected misses up to which each group's promise holds; (N,).
        promise_s: Price of one request short of it.
        paper: Objective `paper` instead of `requests`.
    """

    model: Ints
    requests: Floats
    deadline_s: Floats
    priority: Ints
    runs: Bools
    time_class: Ints
    before: Ints
    price_s: Floats
    service_s: Floats
    tail_s: Floats
    memory: Memory
    unload_s: Floats
    loaded: int
    leave_s: float
    asleep: Rows
    tier: Ints
    sleeps_in: Ints
    evicts: bool
    busy_s: Floats
    sampled: bool
    miss_weight_s: float
    allowed: Floats
    promise_s: float
    paper: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lanes:
    """Groups and lanes of a problem.

    Attributes:
        arrays: The problem in canonical order.
        groups: Indices of the placeable groups in `arrays`; (N,).
        lanes: One per set of identical instances.
        instances: Indices in `arrays` of the instances of each lane.
    """

    arrays: ProblemArrays
    groups: Ints
    lanes: tuple[Lane, ...]
    instances: tuple[tuple[int, ...], ...]

    @property
    def equal(self) -> tuple[tuple[int, ...], ...]:
        """Sets of equal groups, each in id order, as positions in `groups`."""
        sets: dict[int, list[int]] = {}
        first: dict[int, int] = {}
        for at, before in enumerate(self.lanes[0].before.tolist()):
            first[at] = at if before == NONE else first[before]
            sets.setdefault(first[at], []).append(at)
        return tuple(tuple(members) for members in sets.values())


def problem_lanes(problem: Problem, scenarios: Scenarios | None, objective: Objective) -> Lanes:
    """Write a problem and its times as arrays.

    Args:
        problem: A problem with at least one instance.
        scenarios: Result of `draw_scenarios` on it; None for normal times.
        objective: Penalty to minimise.
    """
    arrays = problem_arrays(problem)
    groups = np.flatnonzero(arrays.placeable)
    relatives = alike_in_time(problem.groups)
    time_class = _numbers([relatives[arrays.groups[g]] for g in groups])
    draws = _Draws.of(arrays, relatives, scenarios, objective)
    before = _equal_before(arrays, groups, time_class)
    sets: dict[tuple[object, ...], list[int]] = {}
    for i in range(len(arrays.instances)):
        sets.setdefault(_identity(arrays, i), []).append(i)
    return Lanes(
        arrays=arrays,
        groups=groups,
        lanes=tuple(
            _lane(arrays, groups, time_class, before, same[0], draws, objective) for same in sets.values()
        ),
        instances=tuple(tuple(same) for same in sets.values()),
    )


def _numbers(keys: list[tuple[str, ...]]) -> Ints:
    number: dict[tuple[str, ...], int] = {}
    return np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)


def _equal_before(arrays: ProblemArrays, groups: Ints, time_class: Ints) -> Ints:
    """Find the preceding equal group: equal times, requests, deadline, priority, promise and home.

    Home and promise count if they have a price.
    """
    last: dict[tuple[float, ...], int] = {}
    before = np.full(len(groups), NONE, dtype=np.int64)
    for at, g in enumerate(groups):
        home = arrays.home[g] if arrays.move_s else 0
        promise = arrays.allowed[g] if arrays.promise_s else 0.0
        key = (time_class[at], arrays.requests[g], arrays.deadline_s[g], arrays.priority[g], home, promise)
        before[at] = last.get(key, NONE)
        last[key] = at
    return before


def _identity(arrays: ProblemArrays, i: int) -> tuple[object, ...]:
    """Return the key of identical instances; if moves cost, a home of groups is identical to itself only."""
    own = i if arrays.move_s and (arrays.home == i).any() else NONE
    state = (int(arrays.kind[i]), int(arrays.loaded[i]), arrays.asleep[i], float(arrays.leave_s[i]))
    return (*state, float(arrays.busy_s[i]), float(arrays.busy_var[i]), own)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Draws:
    """Deviations that turn mean and variance into the K values of a time.

    Attributes:
        busy: Deviations by scenario, or None for moments; (K,).
        service, tail: Deviations by group in `ProblemArrays` and rank; (K,) each.
        shared: Errors that groups share: of the speed, then of each class; (F, K), or (F, 0) for moments.
    """

    busy: Floats | None
    service: dict[int, list[Floats]]
    tail: dict[int, list[Floats]]
    shared: Floats

    @classmethod
    def of(
        cls,
        arrays: ProblemArrays,
        relatives: dict[GroupId, tuple[GroupId, ...]],
        scenarios: Scenarios | None,
        objective: Objective,
    ) -> "_Draws":
        """Select the deviations.

        The paper's objective is linear in times, and draws have mean 0: means suffice for it.
        """
        ids = dict(enumerate(arrays.groups))
        errors = 1 + len(arrays.classes) if arrays.shares else 0
        if scenarios is None and objective == "requests" and _uncertain(arrays):
            return cls(busy=None, service={}, tail={}, shared=np.zeros((errors, 0)))
        if scenarios is None or objective == "paper":
            mean = {g: [np.zeros(1)] * len(relatives[id]) for g, id in ids.items()}
            return cls(busy=np.zeros(1), service=mean, tail=mean, shared=np.zeros((errors, 1)))
        shared = [scenarios.speed, *(scenarios.classes[name] for name in arrays.classes)]
        return cls(
            shared=np.array(shared)[:errors],
            busy=scenarios.busy,
            service={g: [scenarios.service[other] for other in relatives[id]] for g, id in ids.items()},
            tail={g: [scenarios.tail[other] for other in relatives[id]] for g, id in ids.items()},
        )

    def values(self, mean_s: float, var: float, sds_s: Floats, deviations: Floats | None) -> Floats:
        """Return the K values of one time; `sds_s` are its standard deviations by shared errors, (F,)."""
        if deviations is None:
            return np.array([mean_s, var, *sds_s])
        values: Floats = mean_s + np.sqrt(var) * deviations + sds_s @ self.shared
        return values


def _uncertain(arrays: ProblemArrays) -> bool:
    own = arrays.busy_var.any() or arrays.service_var.any() or arrays.tail_var.any()
    return bool(own or arrays.shares)


def _lane(
    arrays: ProblemArrays,
    groups: Ints,
    time_class: Ints,
    before: Ints,
    i: int,
    draws: _Draws,
    objective: Objective,
) -> Lane:
    kind = int(arrays.kind[i])
    service_s, tail_s = _times(arrays, kind, groups, time_class, draws)
    every = np.arange(len(arrays.models))
    everywhere = memory_of(arrays, every)
    memory = of_kind(everywhere, kind)
    used = np.zeros(len(every), dtype=np.bool_)
    used[arrays.model[groups[arrays.runs[kind, groups]]]] = True
    used[[model for model, _tier in arrays.asleep[i]]] = True
    if arrays.loaded[i] != NONE:
        used[arrays.loaded[i]] = True
    elsewhere = (arrays.home[groups] != NONE) & (arrays.home[groups] != i)
    lane = Lane(
        model=arrays.model[groups],
        requests=arrays.requests[groups],
        deadline_s=arrays.deadline_s[groups],
        priority=arrays.priority[groups],
        runs=arrays.runs[kind, groups],
        time_class=time_class,
        before=before,
        price_s=np.where(elsewhere, arrays.move_s, 0.0),
        service_s=service_s,
        tail_s=tail_s,
        memory=memory,
        unload_s=arrays.unload_s[kind].copy(),
        loaded=int(arrays.loaded[i]),
        leave_s=float(arrays.leave_s[i]),
        asleep=first_rows(arrays, every, row_size(arrays, everywhere))[None, i : i + 1],
        tier=arrays.tier[i],
        sleeps_in=_sleeps_in(memory),
        evicts=not always_fits(memory, 0, used),
        busy_s=draws.values(
            float(arrays.busy_s[i]), float(arrays.busy_var[i]), np.zeros(len(draws.shared)), draws.busy
        ),
        sampled=draws.busy is not None,
        miss_weight_s=arrays.miss_weight_s,
        allowed=arrays.allowed[groups],
        promise_s=0.0 if objective == "paper" else arrays.promise_s,
        paper=objective == "paper",
    )
    return row_major(lane)


def _sleeps_in(memory: Memory) -> Ints:
    """Return the tier that saves most time, for each model of one kind; (M,)."""
    saves_s = memory.saves_s[0]
    tier = saves_s.argmax(axis=1)
    return np.where(saves_s.max(axis=1) > 0, tier, COLD)


def _times(
    arrays: ProblemArrays, kind: int, groups: Ints, time_class: Ints, draws: _Draws
) -> tuple[Floats, Floats]:
    """Return service times and tails by time class and rank; (C, R, K) each."""
    ranks = np.bincount(time_class, minlength=1)
    count = 2 + len(draws.shared) if draws.busy is None else len(draws.busy)
    service_s = np.zeros((len(ranks), ranks.max(initial=1), count))
    tail_s = np.zeros_like(service_s)
    for at, g in enumerate(groups.tolist()):
        service = float(arrays.service_s[kind, g]), float(arrays.service_var[kind, g])
        tail = float(arrays.tail_s[kind, g]), float(arrays.tail_var[kind, g])
        shared, tail_shared = _shared_sds(arrays, kind, g, len(draws.shared))
        for rank in range(ranks[time_class[at]]):
            own = (None, None) if draws.busy is None else (draws.service[g][rank], draws.tail[g][rank])
            service_s[time_class[at], rank] = draws.values(*service, shared, own[0])
            tail_s[time_class[at], rank] = draws.values(*tail, tail_shared, own[1])
    return service_s, tail_s


def _shared_sds(arrays: ProblemArrays, kind: int, g: int, errors: int) -> tuple[Floats, Floats]:
    """Return the standard deviations of service time and tail by the errors that groups share; (F,) each."""
    service, tail = np.zeros(errors), np.zeros(errors)
    if errors:
        service[0], tail[0] = arrays.speed_sd_s[kind, g], arrays.tail_speed_sd_s[kind, g]
        if arrays.cls[g] != NONE:
            service[1 + arrays.cls[g]] = arrays.class_sd_s[kind, g]
    return service, tail

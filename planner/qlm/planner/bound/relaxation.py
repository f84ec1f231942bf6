"""The relaxation of the lower bound: least costs of groups by their starts, under capacity constraints.

Instances are aggregated to lane types. docs/planner-bound.md proves that it is a relaxation.
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from qlm.planner.arrays import COLD, NONE, Bools, Floats, Ints, ProblemArrays, row_major
from qlm.planner.bound.charge import Charges

LaneTypes = Literal["kind", "instance"]
"""Aggregation of instances: all of a kind are one type, or only identical ones."""


SURCHARGE_MAX: Final = 20.0
"""Largest swap time charged per second of work; a larger one would hold for the first edges only."""


INSTANT_S: Final = 1e-6
"""Service time below which a predecessor counts as taking no time."""


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """A problem without the order of queues; K lane types, G groups that can be placed and have a deadline.

    Attributes:
        groups: Indices of the groups in the problem's arrays; (G,).
        kind: Kind of each type; (K,).
        members: Instances of each type.
        busy_s: Busy time of each instance of the problem.
        loaded: Model that each instance has loaded, or `NONE`.
        swap_s: Least time of loading each model on an instance of the type that has it not loaded; infinite
            if there is none; (K, M).
        charges: Least costs of groups by their starts.
        moves_s: Least price of the moves of all other groups.
    """

    groups: Ints
    kind: Ints
    members: tuple[Ints, ...]
    busy_s: Floats
    loaded: Ints
    swap_s: Floats
    charges: Charges
    moves_s: float

    def capacity_s(self, edges_s: Floats) -> Floats:
        """Return the instance seconds after the busy time between edges; (K, edges - 1)."""
        return np.diff(np.array([self._free_s(members, edges_s) for members in self.members]), axis=1)

    def loaded_s(self, edges_s: Floats) -> Floats:
        """Return the part of it on instances that have a model loaded now; (K, M, edges - 1)."""
        models = range(self.swap_s.shape[1])
        free = [
            [self._free_s(members[self.loaded[members] == model], edges_s) for model in models]
            for members in self.members
        ]
        return np.diff(np.array(free), axis=2)

    def surcharge(self, edges_s: Floats) -> Floats:
        """Return the least swap seconds per second of work for a model that was not loaded at first.

        An instance has had at most t - busy - swap seconds for that work until an edge t; (K, M, edges - 1),
        without the first edge.
        """
        busy_s = np.array([self.busy_s[members].min() for members in self.members])
        swap_s = np.where(np.isfinite(self.swap_s), self.swap_s, 0.0)[:, :, None]
        left_s = edges_s[None, None, 1:] - busy_s[:, None, None] - swap_s
        return np.where(
            left_s * SURCHARGE_MAX > swap_s, swap_s / np.where(left_s > 0, left_s, 1.0), SURCHARGE_MAX
        ) * (swap_s > 0)

    def _free_s(self, members: Ints, edges_s: Floats) -> Floats:
        """Return the instance seconds until each edge."""
        free: Floats = np.maximum(0.0, edges_s[None, :] - self.busy_s[members][:, None]).sum(axis=0)
        return free

    @property
    def soon_s(self) -> float:
        """Approximate end of all work if each group goes where it takes the least share of a type."""
        c, count = self.charges, np.array([len(members) for members in self.members])
        work_s = np.where(c.runs, c.service_s / count[:, None], np.inf).min(axis=0).sum()
        first_s = np.where(c.runs, c.first_s, np.inf).min(axis=0).max()
        return float(max(first_s, self.busy_s.max()) + work_s)

    @property
    def end_s(self) -> float:
        """Twice the time by which one instance of each type could have done everything that runs there.

        Behind the first half, capacity binds nothing.
        """
        last, c = 0.0, self.charges
        for k, members in enumerate(self.members):
            on, swap_s = c.runs[k], self.swap_s[k]
            work_s = float((c.service_s[k] + c.tail_s[k])[on].sum() + swap_s[np.isfinite(swap_s)].sum())
            first_s = float(c.first_s[k][on].max(initial=0.0))
            last = max(last, first_s, float(self.busy_s[members].max()) + work_s)
        return 2.0 * last


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Weights of the objective.

    Attributes:
        late: Price of a second late: 1, or 0 to count misses only.
        miss_s: Price of a miss.
        promise_s: Price of a request short of a promise.
    """

    late: float = 1.0
    miss_s: float
    promise_s: float = 0.0


def relaxation(arrays: ProblemArrays, weights: Weights, *, lanes: LaneTypes) -> Relaxation:
    """Relax a problem.

    Args:
        arrays: The problem.
        weights: Weights of the objective.
        lanes: Aggregation of instances; `instance` is tighter and costs more.
    """
    placeable = arrays.placeable
    dated = np.flatnonzero(placeable & np.isfinite(arrays.deadline_s))
    members = _kinds(arrays) if lanes == "kind" else _alike(arrays)
    kind = np.array([arrays.kind[each[0]] for each in members], dtype=np.int64)
    extra = np.array([_moves_s(arrays, each) for each in members]).reshape(len(members), len(placeable))
    others = placeable & ~np.isfinite(arrays.deadline_s)
    least = np.where(arrays.runs[kind], extra, np.inf).min(axis=0, initial=np.inf)
    prior_s, prior_slope = _predecessors(arrays)
    shared_sd, shared_slope, shared_most = _shared_errors(arrays)
    least_var = np.array([arrays.busy_var[each].min() for each in members]).reshape(-1, 1)
    charges = Charges(
        runs=arrays.runs[kind][:, dated],
        first_s=np.array([_first_s(arrays, each) for each in members]).reshape(len(members), -1)[
            :, arrays.model[dated]
        ],
        service_s=arrays.service_s[kind][:, dated],
        tail_s=arrays.tail_s[kind][:, dated],
        low_sd=np.sqrt(least_var + _first_var(arrays)[kind])[:, dated],
        own_var=(arrays.service_var + arrays.tail_var)[kind][:, dated],
        extra_s=extra[:, dated],
        busy_s=np.array([arrays.busy_s[each].min() for each in members]),
        busy_var=np.array([arrays.busy_var[each].max() for each in members]),
        total_var=np.where(arrays.runs, arrays.service_var + arrays.tail_var, 0.0).sum(axis=1)[kind],
        prior_s=prior_s[kind],
        prior_slope=prior_slope[kind],
        shared_sd=shared_sd[:, kind][:, :, dated],
        shared_slope=shared_slope[:, kind],
        shared_most=shared_most[kind],
        model=arrays.model[dated],
        requests=arrays.requests[dated],
        deadline_s=arrays.deadline_s[dated],
        late_weight=float(weights.late),
        miss_weight_s=float(weights.miss_s),
        allowed=arrays.allowed[dated],
        promise_s=float(weights.promise_s),
    )
    return Relaxation(
        groups=dated,
        kind=kind,
        members=members,
        busy_s=arrays.busy_s,
        loaded=arrays.loaded,
        swap_s=np.array([_swap_s(arrays, each) for each in members]),
        charges=row_major(charges),
        moves_s=float(least[others].sum()),
    )


def _kinds(arrays: ProblemArrays) -> tuple[Ints, ...]:
    return tuple(np.flatnonzero(arrays.kind == kind) for kind in np.unique(arrays.kind))


def _alike(arrays: ProblemArrays) -> tuple[Ints, ...]:
    """Instances that differ in nothing but their ids and queues."""
    alike: dict[tuple[int, int, bytes, float, float], list[int]] = {}
    tier = arrays.tier
    for i in range(len(arrays.kind)):
        key = (
            int(arrays.kind[i]),
            int(arrays.loaded[i]),
            tier[i].tobytes(),
            float(arrays.busy_s[i]),
            float(arrays.busy_var[i]),
        )
        alike.setdefault(key, []).append(i)
    return tuple(np.array(each, dtype=np.int64) for each in alike.values())


def _moves_s(arrays: ProblemArrays, members: Ints) -> Floats:
    """Price of moving each group to the type, if it is not at home there."""
    away = (arrays.home != NONE) & ~np.isin(arrays.home, members)
    return np.where(away, arrays.move_s, 0.0)


def _first_s(arrays: ProblemArrays, members: Ints) -> Floats:
    """Earliest start of a group of each model on one of the instances, which may have to be loaded; (M,)."""
    tier = arrays.tier
    starts = [_start_s(arrays, tier[i], int(i)) for i in members]
    first: Floats = np.min(starts, axis=0)
    return first


def _first_swap_s(arrays: ProblemArrays, tier: Ints, i: int) -> Floats:
    """Return the least time of the first swap to each model: from its tier, or from none if evicted; (M,)."""
    takes_s = arrays.takes_s[arrays.kind[i]]
    first_s: Floats = np.minimum(takes_s[np.arange(len(tier)), tier], takes_s[:, COLD])
    return first_s


def _start_s(arrays: ProblemArrays, tier: Ints, i: int) -> Floats:
    kind, loaded = arrays.kind[i], arrays.loaded[i]
    swap_s = _first_swap_s(arrays, tier, i)
    if loaded != NONE:
        swap_s = swap_s + arrays.unload_s[kind, loaded]
        swap_s[loaded] = 0.0
    return np.asarray(arrays.busy_s[i] + swap_s, dtype=np.float64)


def _swap_s(arrays: ProblemArrays, members: Ints) -> Floats:
    """Return the least time of loading each model on one of the instances, from any other model; (M,)."""
    kind = arrays.kind[members[0]]
    known = arrays.runs[kind]
    unload_s = arrays.unload_s[kind]
    least, tier = np.full(len(arrays.models), np.inf), arrays.tier
    for i in members:
        swap_s = _first_swap_s(arrays, tier[i], int(i))
        if arrays.loaded[i] != NONE:
            swap_s = swap_s + _least_other(unload_s, known, arrays, int(i))
            swap_s[arrays.loaded[i]] = np.inf
        least = np.minimum(least, swap_s)
    return least


def _least_other(unload_s: Floats, known: Bools, arrays: ProblemArrays, i: int) -> Floats:
    """Return the least unload time of a model that can be loaded before each model."""
    can = np.zeros(len(unload_s), dtype=np.bool_)
    can[arrays.model[known]] = True
    can[arrays.loaded[i]] = True
    order = np.where(can, unload_s, np.inf)
    first = int(np.argmin(order))
    least = np.full(len(unload_s), order[first])
    order[first] = np.inf
    least[first] = order.min()
    return least


def _predecessors(arrays: ProblemArrays) -> tuple[Floats, Floats]:
    """Return `prior_s` and `prior_slope` of `Charges`, for all kinds.

    A group adds the variance of its service time in that time; or that of its tail as well in the
    time of both and of a swap, if the groups of the kind have more than one model.
    """
    times, slopes = [], []
    for k in range(len(arrays.kinds)):
        on = arrays.runs[k]
        models = np.unique(arrays.model[on])
        time, var = [arrays.service_s[k, on]], [arrays.service_var[k, on]]
        if len(models) > 1:
            swap_s = arrays.takes_s[k, models].min()
            both = arrays.service_s[k, on] + arrays.tail_s[k, on] + swap_s + arrays.unload_s[k, models].min()
            time.append(both)
            var.append(arrays.service_var[k, on] + arrays.tail_var[k, on])
        rising = _rising(np.concatenate(time), np.concatenate(var))
        times.append(rising[0])
        slopes.append(rising[1])
    size = max((len(each) for each in times), default=0)
    prior_s, prior_slope = np.full((len(times), size), np.inf), np.full((len(times), size), np.inf)
    for k, (at, slope) in enumerate(zip(times, slopes, strict=True)):
        prior_s[k, : len(at)], prior_slope[k, : len(at)] = at, slope
    return prior_s, prior_slope


def _first_var(arrays: ProblemArrays) -> Floats:
    """Return the least variance that the first request of each group adds to that of its start; (K, G)."""
    first = 1.0 / arrays.requests
    own = arrays.tail_var + (arrays.service_var + arrays.class_sd_s**2) * first**2
    var: Floats = own + (arrays.tail_speed_sd_s + arrays.speed_sd_s * first) ** 2
    return var


def _shared_errors(arrays: ProblemArrays) -> tuple[Floats, Floats, Floats]:
    """Return `shared_sd`, `shared_slope` and `shared_most` of `Charges`, for all kinds.

    The standard deviations by the errors of all classes together, added up, are an upper bound on the root of
    the sum of their squares. A tail counts with the service time: a predecessor of another model adds both.
    """
    whole = np.stack([arrays.class_sd_s, arrays.speed_sd_s + arrays.tail_speed_sd_s])
    whole = np.where(arrays.runs, whole, 0.0)
    instant = arrays.service_s < INSTANT_S
    sd = whole + np.where(instant, whole, 0.0).sum(axis=2, keepdims=True)
    slope = np.where(instant, 0.0, whole / np.where(instant, 1.0, arrays.service_s)).max(axis=2, initial=0.0)
    most = whole[1].sum(axis=1) ** 2
    for cls in range(len(arrays.classes)):
        most += whole[0][:, arrays.cls == cls].sum(axis=1) ** 2
    return sd, slope, most


def _rising(time: Floats, var: Floats) -> tuple[Floats, Floats]:
    """Return the times at which the largest variance per second of predecessors rises, and its values."""
    order = np.argsort(time, kind="stable")
    time, var = time[order], var[order]
    slope = np.where(var > 0, np.inf, 0.0)
    np.divide(var, time, out=slope, where=time > 0)
    most = np.maximum.accumulate(slope) if len(slope) else slope
    new = np.append(True, most[1:] > most[:-1])[: len(most)]
    return time[new], most[new]

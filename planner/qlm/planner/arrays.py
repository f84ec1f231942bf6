"""A planning problem as arrays, for compiled code and linear programs.

Groups and instances are sorted by their ids, so that no result depends on the input order.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.operations import SwapTier
from qlm.planner.problem import GroupTime, Instance, Kind, Plan, PlannedGroup, Problem
from qlm.planner.swapping.swaps import Swaps, swap_cost

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Fields = TypeVar("Fields", bound=tuple[Any, ...])

NONE = -1
"""Index that stands for none: no model loaded, no home instance of a group."""

WARM, RELOAD, COLD = range(3)
"""Tiers of a model that is not awake, as indices; see `SwapTier`."""

_TIERS = {SwapTier.WARM: WARM, SwapTier.RELOAD: RELOAD, SwapTier.COLD: COLD}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProblemArrays:
    """Groups (G), instances (I), kinds (K) and models (M) of a problem; times in seconds from now.

    Attributes:
        groups: Ids, sorted; length G.
        instances: Ids, sorted; length I.
        kinds: Names, sorted, without those that equal an earlier one; length K.
        models: Names, sorted; length M.
        model: Model of each group; (G,).
        requests: Requests of each group; (G,).
        deadline_s: Deadline from now, `inf` for none; (G,).
        priority: Lower goes first; (G,).
        allowed: Expected misses up to which each group's promise holds; all requests without one; (G,).
        runs: Kind k can run group g; (K, G).
        service_s, service_var, tail_s, tail_var: Times where `runs`, else 0, with own variances; (K, G).
        class_sd_s, speed_sd_s, tail_speed_sd_s: Their standard deviations by errors that groups share, see
            `GroupTime`; (K, G).
        cls: Class whose error each group shares, or `NONE`; (G,). Then `class_sd_s` is 0, and its square is
            in `service_var`.
        classes: Names of these classes, sorted.
        kind: Kind of each instance; (I,).
        loaded: Model loaded on each instance, or `NONE`; (I,).
        asleep: Models that sleep on each instance and run there, least recently used first, each with its
            tier; length I.
        busy_s, busy_var: Time until the present batch has ended; (I,).
        leave_s: What a swap discards if the first group needs another model than the loaded one; (I,).
        takes_s: Time until a model serves by its tier, where the kind has it, else 0; (K, M, 3).
        unload_s: Time to unload a model, where the kind has it, else 0; (K, M).
        holds_bytes: Host memory of a model asleep with its weights, and without; (K, M, 2).
        host_memory_bytes: Memory of each kind for all that sleeps; (K,).
        home: Instance whose present queue has the group, or `NONE`; (G,).
        place: Place in that queue, from 0; 0 for none; (G,).
        miss_weight_s: Price of one missed deadline.
        move_s: Price of one moved group.
        promise_s: Price of one request short of a promise.
    """

    groups: tuple[GroupId, ...]
    instances: tuple[InstanceId, ...]
    kinds: tuple[str, ...]
    models: tuple[ModelId, ...]
    model: Ints
    requests: Floats
    deadline_s: Floats
    priority: Ints
    allowed: Floats
    runs: Bools
    service_s: Floats
    service_var: Floats
    tail_s: Floats
    tail_var: Floats
    class_sd_s: Floats
    speed_sd_s: Floats
    tail_speed_sd_s: Floats
    cls: Ints
    classes: tuple[str, ...]
    kind: Ints
    loaded: Ints
    asleep: tuple[tuple[tuple[int, int], ...], ...]
    busy_s: Floats
    busy_var: Floats
    leave_s: Floats
    takes_s: Floats
    unload_s: Floats
    holds_bytes: Ints
    host_memory_bytes: Ints
    home: Ints
    place: Ints
    miss_weight_s: float
    move_s: float
    promise_s: float

    @property
    def shares(self) -> bool:
        """True if groups share any error."""
        return bool(self.class_sd_s.any() or self.speed_sd_s.any() or self.tail_speed_sd_s.any())

    @property
    def tier(self) -> Ints:
        """Tier in which each model sleeps now, `WARM` for the loaded one; (I, M)."""
        tier = np.full((len(self.instances), len(self.models)), COLD, dtype=np.int64)
        for at, entries in enumerate(self.asleep):
            for model, of in entries:
                tier[at, model] = of
            if self.loaded[at] != NONE:
                tier[at, self.loaded[at]] = WARM
        return tier

    @property
    def placeable(self) -> Bools:
        """Groups that some instance can run; (G,)."""
        if not len(self.kind):
            return np.zeros(len(self.groups), dtype=np.bool_)
        used: Bools = np.asarray(self.runs[np.unique(self.kind)].any(axis=0), dtype=np.bool_)
        return used

    def plan(self, queues: Sequence[Sequence[int]], *, method: str) -> Plan:
        """Write queues as a plan.

        Args:
            queues: Indices of groups per instance, in order.
            method: Name of the planning method.
        """
        missing = np.flatnonzero(~self.placeable)
        return Plan(
            queues={
                id: tuple(self.groups[g] for g in queue)
                for id, queue in zip(self.instances, queues, strict=True)
            },
            unplaceable=tuple(self.groups[g] for g in missing),
            method=method,
        )


def row_major(fields: Fields) -> Fields:
    """Lay out every array of a named tuple row by row (C order), for compiled code.

    Indexing and stacking may leave another layout, depending on the sizes. Numba treats each layout as a
    type of its own, and compiles everything again for it.
    """
    return type(fields)(
        *(np.ascontiguousarray(each) if isinstance(each, np.ndarray) else each for each in fields)
    )


def problem_arrays(problem: Problem) -> ProblemArrays:
    """Write a problem as arrays."""
    groups = sorted(problem.groups, key=lambda g: g.id)
    instances = sorted(problem.instances, key=lambda i: i.id)
    kinds = sorted(problem.kinds)
    models = sorted(_models(problem))
    number = {model: at for at, model in enumerate(models)}
    at_kind = {name: at for at, name in enumerate(kinds)}
    home, place = _homes(groups, instances)
    runs, times = _times(groups, kinds, problem.kinds)
    takes_s, unload_s, holds_bytes = _costs(problem.kinds, kinds, number)
    memory_bytes = np.array([problem.kinds[name].host_memory_bytes for name in kinds], dtype=np.int64)
    first, merged = _different(
        runs, times.transpose(1, 0, 2), takes_s, unload_s, holds_bytes, memory_bytes[:, np.newaxis]
    )
    runs, times = runs[first], times[:, first]
    swaps = {name: Swaps(kind) for name, kind in problem.kinds.items()}
    classes = sorted({group.cls for group in groups if group.cls is not None})
    cls_number = {name: at for at, name in enumerate(classes)}
    cls = np.array([NONE if g.cls is None else cls_number[g.cls] for g in groups], dtype=np.int64)
    return ProblemArrays(
        groups=tuple(g.id for g in groups),
        instances=tuple(i.id for i in instances),
        kinds=tuple(kinds[k] for k in first),
        models=tuple(models),
        model=np.array([number[g.model] for g in groups], dtype=np.int64),
        requests=np.array([g.requests for g in groups], dtype=np.float64),
        deadline_s=np.array([_deadline_s(g, problem.now_s) for g in groups], dtype=np.float64),
        priority=np.array([g.priority for g in groups], dtype=np.int64),
        allowed=np.array([g.misses_allowed for g in groups], dtype=np.float64),
        runs=runs,
        service_s=times[0],
        service_var=times[1] + np.where(cls == NONE, times[4] ** 2, 0.0),
        tail_s=times[2],
        tail_var=times[3],
        class_sd_s=np.where(cls == NONE, 0.0, times[4]),
        speed_sd_s=times[5],
        tail_speed_sd_s=times[6],
        cls=cls,
        classes=tuple(classes),
        kind=merged[np.array([at_kind[i.kind] for i in instances], dtype=np.int64)],
        loaded=np.array(
            [NONE if i.loaded_model is None else number[i.loaded_model] for i in instances], dtype=np.int64
        ),
        asleep=tuple(_asleep(each, swaps[each.kind], number) for each in instances),
        busy_s=np.array([i.busy.mean for i in instances], dtype=np.float64),
        busy_var=np.array([i.busy.var for i in instances], dtype=np.float64),
        leave_s=np.array([i.leave_s for i in instances], dtype=np.float64),
        takes_s=takes_s[first],
        unload_s=unload_s[first],
        holds_bytes=holds_bytes[first],
        host_memory_bytes=memory_bytes[first],
        home=home,
        place=place,
        miss_weight_s=float(problem.miss_weight_s),
        move_s=float(problem.move_s),
        promise_s=float(problem.promise_s),
    )


def _models(problem: Problem) -> set[ModelId]:
    models = {group.model for group in problem.groups}
    for kind in problem.kinds.values():
        models.update(kind.models)
    for instance in problem.instances:
        models.update(instance.warm_models)
        if instance.loaded_model is not None:
            models.add(instance.loaded_model)
    return models


def _deadline_s(group: PlannedGroup, now_s: float) -> float:
    return math.inf if group.deadline_s is None else group.deadline_s - now_s


def _times(
    groups: Sequence[PlannedGroup], kinds: Sequence[str], costs: Mapping[str, Kind]
) -> tuple[Bools, Floats]:
    """Return which kind runs which group, (K, G), and the columns of times, (7, K, G).

    Groups of a class share one `time` object, and kinds share times: each is read once.
    """
    rows: dict[int, int] = {}
    columns: dict[int, tuple[float, ...]] = {}
    known: list[list[tuple[float, ...]]] = []
    row_of = np.empty(len(groups), dtype=np.int64)
    for at, group in enumerate(groups):
        row = rows.get(id(group.time))
        if row is None:
            row = rows[id(group.time)] = len(known)
            known.append([_columns(group.time.get(kind), columns) for kind in kinds])
        row_of[at] = row
    table = np.array(known, dtype=np.float64).reshape(len(known), len(kinds), 8)
    models = {model: at for at, model in enumerate(sorted({group.model for group in groups}))}
    has = np.array([[model in costs[kind].models for model in models] for kind in kinds], dtype=np.bool_)
    has = has.reshape(len(kinds), len(models))
    model_of = np.array([models[group.model] for group in groups], dtype=np.int64)
    times = np.ascontiguousarray(table[row_of].transpose(2, 1, 0))
    runs: Bools = (times[7] > 0.0) & has[:, model_of]
    times *= runs
    return runs, times[:7]


def _asleep(instance: Instance, swaps: Swaps, number: Mapping[ModelId, int]) -> tuple[tuple[int, int], ...]:
    return tuple([(number[model], _TIERS[tier]) for model, tier in swaps.at_first(instance).models.items()])


_NOT_THERE: Final = (0.0,) * 8
"""Columns of a kind that cannot run a group."""


def _columns(time: GroupTime | None, known: dict[int, tuple[float, ...]]) -> tuple[float, ...]:
    """Return the columns of times, and 1; zeros without times."""
    if time is None:
        return _NOT_THERE
    values = known.get(id(time))
    if values is None:
        service, tail = time.service, time.tail
        shared = time.class_sd_s, time.speed_sd_s, time.tail_speed_sd_s
        values = known[id(time)] = (service.mean, service.var, tail.mean, tail.var, *shared, 1.0)
    return values


def _different(*of_kinds: NDArray[Any]) -> tuple[Ints, Ints]:
    """Return the first of all kinds with equal rows, and for each kind the number of its first one.

    A controller makes a kind of each batch size and loaded model; behind a long queue most are equal.
    """
    numbers: dict[bytes, int] = {}
    first: list[int] = []
    number = np.empty(len(of_kinds[0]), dtype=np.int64)
    for k in range(len(number)):
        key = b"".join(np.ascontiguousarray(each[k]).tobytes() for each in of_kinds)
        if key not in numbers:
            numbers[key] = len(first)
            first.append(k)
        number[k] = numbers[key]
    return np.array(first, dtype=np.int64), number


def _costs(
    costs: Mapping[str, Kind], kinds: Sequence[str], number: Mapping[ModelId, int]
) -> tuple[Floats, Floats, Ints]:
    """Return `takes_s`, `unload_s` and `holds_bytes`."""
    takes_s = np.zeros((len(kinds), len(number), 3))
    unload_s = np.zeros((len(kinds), len(number)))
    holds_bytes = np.zeros((len(kinds), len(number), 2), dtype=np.int64)
    for k, kind in enumerate(kinds):
        for model, cost in costs[kind].models.items():
            at, swap = number[model], swap_cost(cost)
            takes_s[k, at] = (swap.warm_s, swap.reload_s, swap.cold_s)
            unload_s[k, at] = cost.unload_s
            holds_bytes[k, at] = (swap.holds_bytes(SwapTier.WARM), swap.holds_bytes(SwapTier.RELOAD))
    return takes_s, unload_s, holds_bytes


def _homes(groups: Sequence[PlannedGroup], instances: Sequence[Instance]) -> tuple[Ints, Ints]:
    index = {group.id: at for at, group in enumerate(groups)}
    home = np.full(len(groups), NONE, dtype=np.int64)
    place = np.zeros(len(groups), dtype=np.int64)
    for i, instance in enumerate(instances):
        for at, group in enumerate(instance.queue):
            if group in index:
                home[index[group]], place[index[group]] = i, at
    return home, place

"""Lane types on a grid of time, for pricing; every time is rounded down."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from qlm.planner.arrays import COLD, NONE, Bools, Floats, Ints, ProblemArrays
from qlm.planner.bound.relaxation import Relaxation, Weights, relaxation
from qlm.planner.certify.pricing import UNMARKED, Track
from qlm.planner.certify.tables import Tables

STEPS_MAX: Final = 8_000
"""Most steps of the grid."""

LEVELS: Final = 12
"""Least variances of a start that are distinguished, by what is surely before it."""

ROUNDED: Final = 1e-9
"""Share by which times count as shorter, so that rounding makes no step too long."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tracks:
    """All lane types of a problem; P groups are priced.

    Attributes:
        groups: Indices of the priced groups in the problem's arrays; (P,).
        tracks: One per lane type.
        members: Instances of each type.
        charges: Least penalty of each group of a track that starts in or after a step, without the price of
            a move, by level of variance; (L, T + 1, N) each.
        floor_s: Least cost of each priced group anywhere; (P,).
        ceiling_s: Its cost behind the grid, where that is least; (P,).
        apart_s: Least cost of all other groups.
        apart: Number of groups with a deadline that are not priced: their service is shorter than a step.
        step_s: Length of a step.
        local: Groups of each track among all with a deadline.
        service_var: Variance of their service times.
        tables: Makes the charges.
    """

    groups: Ints
    tracks: tuple[Track, ...]
    members: tuple[Ints, ...]
    charges: tuple[Floats, ...]
    floor_s: Floats
    ceiling_s: Floats
    apart_s: float
    apart: int
    step_s: float
    local: tuple[Ints, ...]
    service_var: tuple[Floats, ...]
    tables: Tables


def build_tracks(arrays: ProblemArrays, horizon_s: float, steps: int) -> Tracks:
    """Write a problem as lane types on a grid.

    Args:
        arrays: A problem with a group that has a deadline and runs somewhere.
        horizon_s: End of the grid; groups that start later are charged what they cost there.
        steps: Steps of the grid; more, up to `STEPS_MAX`, if a service time is shorter than one.
    """
    weights = Weights(miss_s=arrays.miss_weight_s, promise_s=arrays.promise_s)
    relaxed = relaxation(arrays, weights, lanes="instance")
    c = relaxed.charges
    shortest_s = float(c.service_s[c.runs & (c.service_s > 0)].min(initial=horizon_s))
    steps = min(max(steps, int(horizon_s / shortest_s) + 2), max(steps, STEPS_MAX))
    step_s = horizon_s / steps
    tables = Tables.of(arrays, relaxed, weights, np.arange(steps + 1, dtype=np.float64) * step_s)
    used, row = np.unique(tables.rows, return_inverse=True)
    table = tables.at(np.zeros(1), used)[0]
    instant = (c.runs & (_floors(c.service_s, step_s) < 1)).any(axis=0)
    priced = np.flatnonzero(~instant)
    sort = priced[np.argsort(c.model[priced], kind="stable")]
    charges, tracks, locals_ = [], [], []
    floor_s = np.full(len(c.requests), np.inf)
    ceiling_s = floor_s.copy()
    for k, members in enumerate(relaxed.members):
        first = np.minimum(_floors(c.first_s[k], step_s), steps)
        every = np.flatnonzero(c.runs[k])
        least = table[row[k]][every, first[every]] + c.extra_s[k, every]
        floor_s[every] = np.minimum(floor_s[every], least)
        ceiling_s[every] = np.minimum(ceiling_s[every], table[row[k]][every, steps] + c.extra_s[k, every])
        local = sort[c.runs[k, sort]]
        charges.append(np.ascontiguousarray(table[row[k]][local].T)[None])
        locals_.append(local)
        tracks.append(_track(arrays, relaxed, k, members, sort, local, step_s))
    return Tracks(
        groups=relaxed.groups[sort],
        tracks=tuple(tracks),
        members=relaxed.members,
        charges=tuple(charges),
        floor_s=floor_s[sort],
        ceiling_s=ceiling_s[sort],
        apart_s=float(floor_s[instant].sum()) + relaxed.moves_s,
        apart=int(instant.sum()),
        step_s=step_s,
        local=tuple(locals_),
        service_var=tuple(
            arrays.service_var[int(kind), relaxed.groups[each]]
            for kind, each in zip(relaxed.kind, locals_, strict=True)
        ),
        tables=tables,
    )


def _floors(times_s: Floats | float, step_s: float) -> Ints:
    """Round times down to steps."""
    steps = np.minimum(np.floor(np.asarray(times_s) * (1.0 - ROUNDED) / step_s), 2.0**31)
    return np.asarray(steps, dtype=np.int64)


def marked(tracks: Tracks, marks: list[tuple[list[int], list[int]]]) -> Tracks:
    """Mark further groups and models of each lane type.

    Args:
        tracks: The problem.
        marks: Priced groups and models of each type, by their indices among the priced groups and in the
            track.
    """
    made = [_marked(tracks, k, *each) for k, each in enumerate(marks)]
    return replace(tracks, tracks=tuple(t for t, _ in made), charges=tuple(c for _, c in made))


def _marked(tracks: Tracks, k: int, groups: list[int], models: list[int]) -> tuple[Track, Floats]:
    track = tracks.tracks[k]
    if not groups and not models:
        return track, tracks.charges[k]
    mark, model_mark, marks = track.mark.copy(), track.model_mark.copy(), track.marks
    for at in np.searchsorted(track.groups, groups):
        mark[at], marks = marks, marks + 1
    for model in models:
        model_mark[model], marks = marks, marks + 1
    var = np.zeros(1 << marks)
    for at in np.flatnonzero(mark != UNMARKED):
        var[(np.arange(len(var)) >> mark[at] & 1) > 0] += tracks.service_var[k][at]
    levels = np.unique(np.linspace(0.0, var.max(), LEVELS if var.any() else 1))
    level = np.searchsorted(levels, var * (1.0 - ROUNDED), side="right") - 1
    table = tracks.tables.at(levels, tracks.tables.rows[k : k + 1])[:, 0]
    charges = np.ascontiguousarray(table[:, tracks.local[k]].transpose(0, 2, 1))
    new = track._replace(mark=mark, model_mark=model_mark, marks=marks, level=np.maximum(level, 0))
    return new, charges


def _track(
    arrays: ProblemArrays,
    relaxed: Relaxation,
    k: int,
    members: Ints,
    sort: Ints,
    local: Ints,
    step_s: float,
) -> Track:
    c, kind, i = relaxed.charges, int(relaxed.kind[k]), int(members[0])
    models = np.unique(c.model[sort])
    model = np.searchsorted(models, c.model[local])
    unload_s, loaded = arrays.unload_s[kind], int(arrays.loaded[i])
    others = arrays.runs[kind].copy()  # groups that are not priced: they may stand anywhere in a queue
    others[relaxed.groups[sort]] = False
    tail_s = _least_tails(arrays, others, kind)[relaxed.groups[local]]
    first_s, again_s = _loads(arrays, i, models)
    idle_s = float(arrays.busy_s[i] + (unload_s[loaded] if loaded != NONE else 0.0))
    swap_start_s = idle_s + _least_leave(arrays, others, kind, members)
    second_s = _second(arrays, kind, models, loaded, idle_s, first_s) + again_s
    here = np.searchsorted(models, loaded) if loaded in models else NONE
    return Track(
        groups=np.flatnonzero(c.runs[k, sort]),
        begins=np.searchsorted(model, np.arange(len(models) + 1)),
        follows=_floors(c.service_s[k, local], step_s),
        leaves=_floors(c.service_s[k, local] + tail_s + unload_s[c.model[local]], step_s),
        moves_s=c.extra_s[k, local].copy(),
        mark=np.full(len(local), UNMARKED),
        model_mark=np.full(len(models), UNMARKED),
        marks=0,
        level=np.zeros(1, dtype=np.int64),
        first=_floors(first_s, step_s),
        again=_floors(again_s, step_s),
        second=_floors(second_s, step_s),
        loaded=int(here),
        start=int(_floors(arrays.busy_s[i], step_s)),
        swap_start=int(_floors(swap_start_s, step_s)),
    )


def _loads(arrays: ProblemArrays, i: int, models: Ints) -> tuple[Floats, Floats]:
    """Return the least time of the first load of each model on an instance, and of a later one."""
    takes_s = arrays.takes_s[arrays.kind[i]][models]
    tier = arrays.tier[i][models]
    again_s = takes_s.min(axis=1)
    first_s = np.minimum(takes_s[np.arange(len(models)), tier], takes_s[:, COLD])
    return np.where(models == arrays.loaded[i], again_s, first_s), again_s


def _least_tails(arrays: ProblemArrays, others: Bools, kind: int) -> Floats:
    """Return the least time between a group and a model change: its tail, or another group of the model."""
    tail_s = arrays.tail_s[kind].copy()
    for m in np.unique(arrays.model):
        behind = others & (arrays.model == m)
        least_s = (arrays.service_s[kind] + arrays.tail_s[kind])[behind].min(initial=np.inf)
        tail_s[arrays.model == m] = np.minimum(tail_s[arrays.model == m], least_s)
    least: Floats = tail_s
    return least


def _least_leave(arrays: ProblemArrays, others: Bools, kind: int, members: Ints) -> float:
    """Return the least time at the head of a queue before the loaded model is unloaded."""
    behind = others & (arrays.model == arrays.loaded[members[0]])
    least_s = (arrays.service_s[kind] + arrays.tail_s[kind])[behind].min(initial=np.inf)
    return float(min(arrays.leave_s[members].min(), least_s))


def _second(
    arrays: ProblemArrays, kind: int, models: Ints, loaded: int, idle_s: float, first_s: Floats
) -> Floats:
    """Return the earliest time at which each model can be begun to be loaded for a second time.

    It was loaded, served a group with its tail, and was unloaded; so was another model, whose own load does
    not count here.
    """
    spent_s = arrays.service_s[kind] + arrays.tail_s[kind] + arrays.unload_s[kind][arrays.model]
    least_s = np.full(len(arrays.models), np.inf)
    np.minimum.at(least_s, arrays.model[arrays.runs[kind]], spent_s[arrays.runs[kind]])
    other_s = np.array([np.delete(least_s, m).min(initial=np.inf) for m in models])
    before_s = np.where(models == loaded, 0.0, first_s + least_s[models])
    second_s: Floats = np.minimum(idle_s + before_s + other_s, 1e12)
    return second_s

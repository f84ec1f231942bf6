"""Earliest start of each model on each instance, for list scheduling on large fleets.

An instance can start any group of a model at the same time; only a group added to its schedule changes it. So
these times are kept by kind and model, and `min` finds the earliest.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qlm.domain.ids import ModelId
from qlm.planner.baselines.schedule import Schedule
from qlm.planner.problem import Kind, PlannedGroup

_Row = list[float]
_End = tuple[float, int]
"""End of a group, seconds from now, and index of the schedule; of equal ends the first schedule counts."""


@dataclass(frozen=True, slots=True)
class _Pool:
    """Lanes of one kind.

    Attributes:
        schedules: Indices among all schedules, ascending.
        ready_s: Earliest start on each of them, by model; seconds from now.
    """

    schedules: list[int]
    ready_s: dict[ModelId, _Row]

    @classmethod
    def of(cls, kind: Kind, models: Iterable[ModelId]) -> "_Pool":
        """Return the pool without schedules."""
        return cls([], {model: [] for model in models if model in kind.models})


class EarliestStarts:
    """Earliest start of each model on each schedule.

    Args:
        schedules: Schedules of the fleet.
        models: Models of the groups; others are left out.
    """

    def __init__(self, schedules: Sequence[Schedule], models: Iterable[ModelId]) -> None:
        self._lanes = schedules
        self._pools: dict[str, _Pool] = {}
        self._places: list[int] = []
        wanted = sorted(set(models))
        self._rows: dict[ModelId, list[tuple[str, _Row, list[int]]]] = {model: [] for model in wanted}
        for at, schedule in enumerate(schedules):
            kind = schedule.instance.kind
            pool = self._pools.get(kind)
            if pool is None:
                pool = self._pools[kind] = _Pool.of(schedule.kind, wanted)
                for model, row in pool.ready_s.items():
                    self._rows[model].append((kind, row, pool.schedules))
            self._places.append(len(pool.schedules))
            pool.schedules.append(at)
            for row in pool.ready_s.values():
                row.append(0.0)
            self.update(at)

    def update(self, at: int) -> None:
        """Update the times of a schedule that has another end than before."""
        schedule, place = self._lanes[at], self._places[at]
        state = schedule.last
        leave_s, wakes_s = schedule.leave_s(state), state.asleep.wakes_s
        ready_s = self._pools[schedule.instance.kind].ready_s
        # `Schedule.ready_s` of each model, at once.
        for model, row in ready_s.items():
            row[place] = leave_s + wakes_s[model]
        if state.loaded in ready_s:
            ready_s[state.loaded][place] = state.clock_s

    def first(self, group: PlannedGroup, *, home: int | None = None, move_s: float = 0.0) -> int | None:
        """Find the schedule on which an appended group would end first.

        Args:
            group: The group.
            home: Index of its home, if any.
            move_s: Seconds that any other schedule must gain.

        Returns:
            The schedule's index, the first one of equals; None if none runs it.
        """
        extra_s = 0.0 if home is None else move_s
        best: _End | None = None
        best_s = math.inf
        times = group.time
        for kind, row, schedules in self._rows.get(group.model, ()):
            time = times.get(kind)
            if time is None:
                continue
            # A live fleet has nearly as many kinds as instances, since a kind says what runs there.
            if len(row) == 1:
                end_s, place = row[0] + time.service.mean + time.tail.mean + extra_s, 0
            else:
                end_s, place = _first(row, time.service.mean, time.tail.mean, extra_s)
            if end_s <= best_s:
                end = (end_s, schedules[place])
                best = end if best is None or end < best else best
                best_s = best[0]
        if best is None:
            return None
        # Above, the home paid for a move, too.
        at_home = self._on(home, group) if home is not None and extra_s else None
        return best[1] if at_home is None else min(best, at_home)[1]

    def _on(self, at: int, group: PlannedGroup) -> _End | None:
        kind = self._lanes[at].instance.kind
        row, time = self._pools[kind].ready_s.get(group.model), group.time.get(kind)
        if row is None or time is None:
            return None
        return (row[self._places[at]] + time.service.mean + time.tail.mean, at)


def _first(row: _Row, service_s: float, tail_s: float, extra_s: float) -> tuple[float, int]:
    """Return the earliest end on the schedules of one kind, and the first place that has it.

    A later start may round to the same end: such schedules count as equal.
    """
    ready_s = min(row)
    place, end_s = row.index(ready_s), ready_s + service_s + tail_s + extra_s
    while place:
        ready_s = min(row[:place])
        if ready_s + service_s + tail_s + extra_s > end_s:
            break
        place = row.index(ready_s)
    return end_s, place

"""Where a group would end first, among many lanes, without asking each of them.

A lane can begin a group of a model at one moment, whatever the group; only placing a group in the lane
changes it. So these moments are kept, by kind and model, and the earliest of them is found by `min`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qlm.domain.ids import ModelId
from qlm.planner.baselines.lane import Lane
from qlm.planner.problem import Kind, PlannedGroup

_Row = list[float]
_Spot = tuple[float, int]
"""When a group would end, seconds from now, and on which lane; of equal ends the first lane counts."""


@dataclass(frozen=True, slots=True)
class _Pool:
    """Lanes of one kind.

    Attributes:
        lanes: Their indices among all lanes, ascending.
        ready_s: By model, when each of them could begin a group of it; seconds from now.
        swaps_s: The same rows, each with its model and what bringing it up costs, warm and cold.
    """

    lanes: list[int]
    ready_s: dict[ModelId, _Row]
    swaps_s: list[tuple[ModelId, _Row, float, float]]

    @classmethod
    def of(cls, kind: Kind, models: Iterable[ModelId]) -> "_Pool":
        """Begin without lanes."""
        rows: dict[ModelId, _Row] = {model: [] for model in models if model in kind.models}
        costs = kind.models
        swaps_s = [(m, row, costs[m].swap_warm_s, costs[m].swap_cold_s) for m, row in rows.items()]
        return cls([], rows, swaps_s)


class Openings:
    """When lanes could begin groups of each model.

    Args:
        lanes: All of them.
        models: Models that groups have; others are left out.
    """

    def __init__(self, lanes: Sequence[Lane], models: Iterable[ModelId]) -> None:
        self._lanes = lanes
        self._pools: dict[str, _Pool] = {}
        self._places: list[int] = []
        wanted = sorted(set(models))
        for at, lane in enumerate(lanes):
            kind = lane.instance.kind
            if kind not in self._pools:
                self._pools[kind] = _Pool.of(lane.kind, wanted)
            pool = self._pools[kind]
            self._places.append(len(pool.lanes))
            pool.lanes.append(at)
            for row in pool.ready_s.values():
                row.append(0.0)
            self.changed(at)

    def changed(self, at: int) -> None:
        """Note that a lane has another end than before."""
        lane, place = self._lanes[at], self._places[at]
        clock_s, _, loaded, warm = lane.last
        leave_s = lane.leave_s(lane.last)
        # What `Lane.ready_s` says of each model, at once.
        for model, row, warm_s, cold_s in self._pools[lane.instance.kind].swaps_s:
            if model == loaded:
                row[place] = clock_s
            else:
                row[place] = leave_s + (warm_s if model in warm else cold_s)

    def first(self, group: PlannedGroup, *, home: int | None = None, move_s: float = 0.0) -> int | None:
        """Find the lane at whose end a group would end first.

        Args:
            group: What is to be placed.
            home: The lane where it belongs, if any.
            move_s: What any other lane must gain.

        Returns:
            The lane's index, the first one of equals; None if none runs it.
        """
        extra_s = 0.0 if home is None else move_s
        best: _Spot | None = None
        for kind, time in group.time.items():
            pool = self._pools.get(kind)
            row = pool.ready_s.get(group.model) if pool else None
            if pool is not None and row is not None:
                end_s, place = _first(row, time.drain.mean, time.tail.mean, extra_s)
                spot = (end_s, pool.lanes[place])
                best = spot if best is None or spot < best else best
        if best is None:
            return None
        # Above, the home was made to pay for a move, too.
        stay = self._on(home, group) if home is not None and extra_s else None
        return best[1] if stay is None else min(best, stay)[1]

    def _on(self, at: int, group: PlannedGroup) -> _Spot | None:
        kind = self._lanes[at].instance.kind
        row, time = self._pools[kind].ready_s.get(group.model), group.time.get(kind)
        if row is None or time is None:
            return None
        return (row[self._places[at]] + time.drain.mean + time.tail.mean, at)


def _first(row: _Row, drain_s: float, tail_s: float, extra_s: float) -> tuple[float, int]:
    """Find the earliest end on the lanes of one kind, and the first place that has it.

    A later beginning may round to the same end: such lanes count as equal, too.
    """
    ready_s = min(row)
    place, end_s = row.index(ready_s), ready_s + drain_s + tail_s + extra_s
    while place:
        ready_s = min(row[:place])
        if ready_s + drain_s + tail_s + extra_s > end_s:
            break
        place = row.index(ready_s)
    return end_s, place

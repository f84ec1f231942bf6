"""Index sets and bounds of the position form."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from qlm.planner.arrays import Floats
from qlm.planner.exact.lanes import Lane, Lanes
from qlm.planner.exact.least import earliest_start
from qlm.planner.exact.penalty import group_penalty

END = -1
"""Stands for "no group" where a pair of positions names the model of the second."""


@dataclass(frozen=True)
class Sets:
    """Index sets of the position form.

    Attributes:
        lanes: The sampled problem.
    """

    lanes: Lanes

    @cached_property
    def queues(self) -> tuple[Lane, ...]:
        """The lane of each instance; identical ones stand next to each other."""
        pairs = zip(self.lanes.lanes, self.lanes.instances, strict=True)
        return tuple(lane for lane, same in pairs for _ in same)

    @cached_property
    def instance(self) -> tuple[int, ...]:
        """Number of each queue's instance in the problem."""
        return tuple(i for same in self.lanes.instances for i in same)

    @property
    def groups(self) -> range:
        """Groups i."""
        return range(len(self.lanes.groups))

    @property
    def models(self) -> tuple[int, ...]:
        """Models b of these groups."""
        return tuple(sorted(set(self.queues[0].model.tolist())))

    @property
    def scenarios(self) -> range:
        """Scenarios k."""
        return range(len(self.queues[0].busy_s))

    def positions(self, g: int) -> range:
        """Positions j of queue g: as many as groups that run there."""
        return range(int(self.queues[g].runs.sum()))

    def ranks(self, i: int) -> range:
        """Ranks r that group i can have among the groups alike in time of its queue."""
        time_class = self.queues[0].time_class
        return range(int((time_class == time_class[i]).sum()))

    def kinship(self, i: int) -> int:
        """The set of groups alike in time that group i belongs to."""
        return int(self.queues[0].time_class[i])

    @cached_property
    def alike(self) -> dict[int, tuple[int, ...]]:
        """Sets t of groups alike in time."""
        members: dict[int, tuple[int, ...]] = {}
        for i in self.groups:
            members[self.kinship(i)] = (*members.get(self.kinship(i), ()), i)
        return members

    @cached_property
    def places(self) -> tuple[tuple[int, int, int, int], ...]:
        """All (i, r, g, j) at which group i may stand."""
        return tuple(
            (i, r, g, j)
            for g, lane in enumerate(self.queues)
            for i in self.groups
            if lane.runs[i]
            for r in self.ranks(i)
            for j in self.positions(g)
            if j >= r
        )

    def earliest(self, i: int, g: int, j: int) -> Floats:
        """Before which group i cannot start at position j of queue g: j draws lie before it; (K,)."""
        lane = self.queues[g]
        services_s = np.sort(self._draws(lane), axis=0)[:j].sum(axis=0)
        tails_s = np.minimum(lane.tail_s, 0.0).sum(axis=(0, 1))
        earliest: Floats = np.maximum(earliest_start(lane, i, 0), lane.busy_s + services_s + tails_s)
        return earliest

    def latest(self, g: int, j: int) -> Floats:
        """After which no group starts at position j of queue g; (K,)."""
        lane = self.queues[g]
        services_s = -np.sort(-self._draws(lane), axis=0)[:j]
        tails_s = np.maximum(lane.tail_s.max(axis=(0, 1)), 0.0)
        swap_s = lane.memory.takes_s.max() + lane.unload_s.max() + lane.leave_s
        latest: Floats = (
            lane.busy_s + np.maximum(services_s, 0.0).sum(axis=0) + (j + 1) * swap_s + j * tails_s
        )
        return latest

    def _draws(self, lane: Lane) -> Floats:
        """Drains that can occur on a lane; (number, K)."""
        kept = [lane.service_s[self.kinship(i), r] for i, r in self._members if lane.runs[i]]
        return np.array(kept)

    @cached_property
    def _members(self) -> tuple[tuple[int, int], ...]:
        return tuple((i, r) for same in self.alike.values() for r, i in enumerate(same))

    def least_s(self, i: int, g: int, j: int) -> float:
        """Return the least cost of group i at position j of queue g."""
        lane, earliest_s = self.queues[g], self.earliest(i, g, j)
        costs = [group_penalty(lane, i, r, earliest_s) for r in self.ranks(i) if r <= j]
        return float(min(costs) + lane.price_s[i])

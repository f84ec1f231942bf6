"""First solutions of the search.

A chain is a set of equal groups that must keep their rank order on each instance (`data.CHAIN`).
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from qlm.planner.arrays import NONE, Bools, Ints, ProblemArrays
from qlm.planner.fast.construct import append_all, fill_all, insert_all
from qlm.planner.fast.data import (
    CANNOT_RUN,
    CHAIN,
    HOME,
    KIND,
    RANK,
    SERVICE,
    Data,
    Queues,
    empty_candidates,
    empty_queues,
)

QUEUE_SLOTS_MAX: Final = 4_000_000
"""Slots for groups in all queues together (260 MB), unless the present plan or an even load needs longer
queues."""

SLOT_BYTES: Final = 56
"""Memory of a slot, without what sleeps there."""

EVEN_LOADS: Final = 8
"""Least capacity of a queue, as a multiple of the fullest one under an even spread. The margin is for plans
that spread groups unevenly: a first solution fails when a queue is full."""


class Workspace:
    """Arrays for the queues of one problem.

    Attributes:
        capacity: Most groups per queue.
    """

    def __init__(self, arrays: ProblemArrays, data: Data) -> None:
        groups, instances = len(arrays.groups), max(1, len(arrays.instances))
        longest = np.bincount(arrays.home[arrays.home != NONE], minlength=1).max(initial=0)
        fair = EVEN_LOADS * _even_load(data)
        slots = QUEUE_SLOTS_MAX * SLOT_BYTES // (SLOT_BYTES + 2 * data.asleep.shape[1])
        self.capacity = int(max(1, min(groups, max(slots // instances, longest, fair))))
        self.candidates = empty_candidates(data, self.capacity)
        self._data = data

    def queues(self) -> Queues:
        """Return new, empty queues."""
        return empty_queues(self._data, self.capacity)


def _even_load(data: Data) -> int:
    """Return the groups of the fullest instance, with each model's spread evenly over eligible ones."""
    load = np.zeros(max(1, len(data.fleet)))
    for model, count in enumerate(data.eligible_count):
        if count:
            groups = data.peers_from[model + 1] - data.peers_from[model]
            load[data.eligible[model, :count]] += groups / count
    return math.ceil(float(load.max()))


def urgency_order(arrays: ProblemArrays, groups: Ints) -> Ints:
    """Sort groups by urgency, then id: as `baselines.orders.by_urgency`, on arrays."""
    keys = (groups, arrays.deadline_s[groups], arrays.priority[groups])
    return np.ascontiguousarray(groups[np.lexsort(keys)])


def insertion_plan(arrays: ProblemArrays, data: Data, workspace: Workspace, groups: Ints) -> Queues | None:
    """Insert groups in the order of urgency where each costs least; None if a queue is full."""
    queues = workspace.queues()
    done = insert_all(data, queues, workspace.candidates, urgency_order(arrays, groups))
    return queues if done else None


def list_scheduling_plan(
    arrays: ProblemArrays, data: Data, workspace: Workspace, groups: Ints
) -> Queues | None:
    """Append groups in the order of urgency where each ends first, as EDF does; None if a queue is full."""
    queues = workspace.queues()
    return queues if append_all(data, queues, workspace.candidates, urgency_order(arrays, groups)) else None


def present_plan(arrays: ProblemArrays, data: Data, workspace: Workspace, groups: Bools) -> Queues | None:
    """Keep the selected groups (G,) at their present places, and insert new ones; None if a queue is full."""
    queues = workspace.queues()
    kept = np.flatnonzero(groups & (arrays.home != NONE) & _runs_at_home(data))
    kept = kept[np.lexsort((arrays.place[kept], arrays.priority[kept], arrays.home[kept]))]
    ends = np.searchsorted(arrays.home[kept], np.arange(len(arrays.instances) + 1))
    fill_all(data, queues, workspace.candidates, _in_chain_order(data, kept, arrays.home[kept]), ends)
    new = groups.copy()
    new[kept] = False
    rest = urgency_order(arrays, np.flatnonzero(new))
    return queues if insert_all(data, queues, workspace.candidates, rest) else None


def priced_again(data: Data, workspace: Workspace, queues: Queues) -> Queues:
    """Return the same queues with the prices of `data`."""
    priced = workspace.queues()
    order = np.concatenate([queue[:length] for queue, length in zip(*queues[:2], strict=True)])
    ends = np.concatenate([[0], np.cumsum(queues.length)]).astype(np.int64)
    fill_all(data, priced, workspace.candidates, order, ends)
    return priced


def _in_chain_order(data: Data, order: Ints, home: Ints) -> Ints:
    """Sort the groups of each chain within the places that they have: otherwise new ones fit nowhere.

    Args:
        data: The problem.
        order: Groups of one instance after the other, in the order of their places.
        home: Instance of each.
    """
    places, chain, rank = np.arange(len(order)), data.traits[order, CHAIN], data.traits[order, RANK]
    rank = np.where(chain >= 0, rank, 0)
    sorted_: Ints = order.copy()
    sorted_[np.lexsort((places, chain, home))] = order[np.lexsort((places, rank, chain, home))]
    return sorted_


def _runs_at_home(data: Data) -> Bools:
    home = data.traits[:, HOME]
    kind = data.fleet[np.maximum(home, 0), KIND] if len(data.fleet) else np.zeros_like(home)
    runs: Bools = data.work[kind, np.arange(len(home)), SERVICE] != CANNOT_RUN
    return runs


def copy_queues(queues: Queues) -> Queues:
    """Return a copy; unused places are neither copied nor cleared, since most of the memory is theirs."""
    used = int(queues.length.max(initial=0)) + 1
    copy = Queues(
        queue=np.empty_like(queues.queue),
        length=queues.length.copy(),
        state=np.empty_like(queues.state),
        memory_at=np.empty_like(queues.memory_at),
        memory=np.empty_like(queues.memory),
        position=queues.position.copy(),
    )
    for name in ("queue", "state", "memory_at", "memory"):
        getattr(copy, name)[:, :used] = getattr(queues, name)[:, :used]
    return copy


def as_lists(queues: Queues) -> Sequence[Sequence[int]]:
    """Return the groups of each queue, in order."""
    return [queue[:length].tolist() for queue, length in zip(queues.queue, queues.length, strict=True)]

"""Plans to begin the search with."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from qlm.planner.arrays import NONE, Bools, Ints, ProblemArrays
from qlm.planner.fast.construct import append_all, insert_all
from qlm.planner.fast.data import (
    BEGIN,
    CANNOT_RUN,
    CHAIN,
    DRAIN,
    END,
    HOME,
    INSTANCE,
    KIND,
    RANK,
    SAME,
    Data,
    Drafts,
    Queues,
    empty_drafts,
    empty_queues,
)
from qlm.planner.fast.queues import set_queue

PLACES_MAX: Final = 4_000_000
"""Places of all queues together (190 MB), as long as no queue must be longer."""


class Room:
    """Memory for queues of one problem, as long as they may get.

    Attributes:
        capacity: Groups per queue.
        drafts: Of two queues.
    """

    def __init__(self, arrays: ProblemArrays, data: Data) -> None:
        groups, instances = len(arrays.groups), max(1, len(arrays.instances))
        present = np.bincount(arrays.home[arrays.home != NONE], minlength=1).max(initial=0)
        fair = 8 * _fair(data)
        self.capacity = int(max(1, min(groups, max(PLACES_MAX // instances, present, fair))))
        self.drafts = empty_drafts(self.capacity)
        self._data = data

    def queues(self) -> Queues:
        """Return new, empty queues."""
        return empty_queues(self._data, self.capacity)


def _fair(data: Data) -> int:
    """Groups on the fullest instance if each model's were spread evenly over those that can run it."""
    load = np.zeros(max(1, len(data.fleet)))
    for model, count in enumerate(data.able_count):
        if count:
            groups = data.peers_from[model + 1] - data.peers_from[model]
            load[data.able[model, :count]] += groups / count
    return math.ceil(float(load.max()))


def urgency_order(arrays: ProblemArrays, groups: Ints) -> Ints:
    """Sort groups by priority, deadline and id."""
    keys = (groups, arrays.deadline_s[groups], arrays.priority[groups])
    return np.ascontiguousarray(groups[np.lexsort(keys)])


def inserted(arrays: ProblemArrays, data: Data, room: Room, groups: Ints) -> Queues | None:
    """Insert groups in the order of urgency where each costs least."""
    queues = room.queues()
    done = insert_all(data, queues, room.drafts, urgency_order(arrays, groups))
    return queues if done else None


def appended(arrays: ProblemArrays, data: Data, room: Room, groups: Ints) -> Queues | None:
    """Append groups in the order of urgency where each ends first: what EDF does."""
    queues = room.queues()
    return queues if append_all(data, queues, room.drafts, urgency_order(arrays, groups)) else None


def present(arrays: ProblemArrays, data: Data, room: Room, groups: Bools) -> Queues | None:
    """Take over the present plan, and insert what is new.

    Args:
        arrays: The problem.
        data: The same for compiled code.
        room: Memory.
        groups: Those that are wanted; (G,).

    Returns:
        None if a queue is full.
    """
    queues = room.queues()
    stays = groups & (arrays.home != NONE) & _runs_at_home(data)
    for instance in range(len(arrays.instances)):
        here = np.flatnonzero(stays & (arrays.home == instance))
        order = _chained(data, here[np.lexsort((arrays.place[here], arrays.priority[here]))])
        _fill(data, queues, room.drafts, instance, order)
    rest = urgency_order(arrays, np.flatnonzero(groups & ~stays))
    return queues if insert_all(data, queues, room.drafts, rest) else None


def _chained(data: Data, order: Ints) -> Ints:
    """Put the groups of each chain in its order, in the places that they have: else new ones fit nowhere."""
    order = order.copy()
    chains = data.who[order, CHAIN]
    for chain in np.unique(chains[chains >= 0]):
        places = np.flatnonzero(chains == chain)
        order[places] = order[places][np.argsort(data.who[order[places], RANK])]
    return order


def _runs_at_home(data: Data) -> Bools:
    home = data.who[:, HOME]
    kind = data.fleet[np.maximum(home, 0), KIND] if len(data.fleet) else np.zeros_like(home)
    runs: Bools = data.work[kind, np.arange(len(home)), DRAIN] != CANNOT_RUN
    return runs


def _fill(data: Data, queues: Queues, drafts: Drafts, instance: int, order: Ints) -> None:
    drafts.groups[0, : len(order)] = order
    drafts.span[0, [INSTANCE, BEGIN, SAME, END]] = instance, 0, len(order), len(order)
    set_queue(data, queues, drafts)


def copied(queues: Queues) -> Queues:
    """Return a copy; places that are not in use are left empty."""
    used = int(queues.length.max(initial=0)) + 1
    copy = Queues(
        queue=np.zeros_like(queues.queue),
        length=queues.length.copy(),
        state=np.zeros_like(queues.state),
        warm=np.zeros_like(queues.warm),
        spot=queues.spot.copy(),
    )
    for old, new in ((queues.queue, copy.queue), (queues.state, copy.state), (queues.warm, copy.warm)):
        new[:, :used] = old[:, :used]
    return copy


def as_lists(queues: Queues) -> Sequence[Sequence[int]]:
    """Return the groups of each queue, in order."""
    return [queue[:length].tolist() for queue, length in zip(queues.queue, queues.length, strict=True)]

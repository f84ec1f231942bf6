"""Random placement, as a load balancer does."""

from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qlm.domain.ids import InstanceId
from qlm.planner.baselines.assignment import assign
from qlm.planner.baselines.orders import by_deadline
from qlm.planner.problem import Plan, PlannedGroup, Problem

_MIX: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and factors of splitmix64 (Steele, Lea and Flood, 2014)."""


def plan_random(problem: Problem, *, seed: int) -> Plan:
    """Place each group on an instance drawn uniformly from those that run it; serve in order of arrival.

    The draw depends on the seed and the two names only (rendezvous hashing), so that a group keeps its place
    when it is planned again. Service times, priorities and models are ignored; the deadline stands for the
    arrival, as in `plan_fcfs`. The plan does not depend on the input order.
    """
    hashes: dict[tuple[InstanceId, ...], NDArray[np.uint64]] = {}

    def draw(group: PlannedGroup, able: tuple[InstanceId, ...]) -> InstanceId:
        if able not in hashes:
            hashes[able] = np.array([_hash(instance) for instance in able], dtype=np.uint64)
        return able[int(_mixed(hashes[able] ^ np.uint64(_hash(f"{seed}:{group.id}"))).argmin())]

    return assign(problem, sorted(problem.groups, key=by_deadline), draw, method="random")


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest())


def _mixed(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix numbers so that those differing in a few bits differ in half of them; products wrap around."""
    for shift, factor in _MIX:
        hashes = (hashes ^ (hashes >> np.uint64(shift))) * np.uint64(factor)
    return hashes ^ (hashes >> np.uint64(31))

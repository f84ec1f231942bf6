"""Random placement: a load balancer that draws lots."""

from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qlm.domain.ids import InstanceId
from qlm.planner.baselines.assignment import assign
from qlm.planner.baselines.orders import arrival
from qlm.planner.problem import Plan, PlannedGroup, Problem

_MIX: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and factors of splitmix64 (Steele, Lea and Flood, 2014)."""


def plan_random(problem: Problem, *, seed: int) -> Plan:
    """Place each group on an instance drawn uniformly from those that run it; serve in order of arrival.

    The lot of a group on an instance depends on the seed and their two names only (rendezvous hashing), so
    that a group that is planned again stays where it is, whatever else comes or goes. Times, priorities and
    models count for nothing; the deadline stands for the arrival, as in `plan_fcfs`.

    Args:
        problem: What waits, and the fleet.
        seed: Of the lots.

    Returns:
        A plan with each placeable group on exactly one queue; deterministic, whatever the input order.
    """
    hashes: dict[tuple[InstanceId, ...], NDArray[np.uint64]] = {}

    def draw(group: PlannedGroup, able: tuple[InstanceId, ...]) -> InstanceId:
        if able not in hashes:
            hashes[able] = np.array([_hash(instance) for instance in able], dtype=np.uint64)
        return able[int(_mixed(hashes[able] ^ np.uint64(_hash(f"{seed}:{group.id}"))).argmin())]

    return assign(problem, sorted(problem.groups, key=arrival), draw, method="random")


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest())


def _mixed(lots: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Make numbers that differ in a few bits differ in half of them; products wrap around."""
    for shift, factor in _MIX:
        lots = (lots ^ (lots >> np.uint64(shift))) * np.uint64(factor)
    return lots ^ (lots >> np.uint64(31))

"""Faults of one trial, drawn from its seed: what, when, to whom, for how long."""

import asyncio
from collections.abc import Collection, Mapping
from random import Random
from types import MappingProxyType
from typing import Final

from simulation.cluster import Cluster
from simulation.faults import connections, doubles, engines, load, processes, servers
from simulation.faults.kind import Kind, PlannedFault
from simulation.history import Fault, FaultOver
from simulation.workload import SPAN_S

FAULTS: Final = (5, 9)
"""Faults of one trial, fewest and most."""

KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        **processes.KINDS,
        **doubles.KINDS,
        **engines.KINDS,
        **connections.KINDS,
        **servers.KINDS,
        **load.KINDS,
    }
)
"""All kinds of faults by name."""


def draw_faults(chance: Random, kinds: Collection[str] | None = None) -> list[PlannedFault]:
    """Draw the faults of a trial.

    Args:
        chance: Source of randomness.
        kinds: Draw only these, repeatedly. None for all kinds, each at most once.
    """
    count = chance.randint(*FAULTS)
    if kinds is None:
        # The first of this order have the distribution of draws by weight without replacement.
        order = sorted(KINDS, key=lambda name: chance.random() ** (1 / KINDS[name].weight), reverse=True)
        drawn = order[:count]
    else:
        names = [name for name in KINDS if name in kinds]
        drawn = chance.choices(names, [KINDS[name].weight for name in names], k=count)
    return [_draw(name, chance) for name in drawn]


def _draw(name: str, chance: Random) -> PlannedFault:
    kind = KINDS[name]
    least_s, most_s = kind.lasts_s
    lasts_s = least_s + (most_s - least_s) * chance.random() ** 2
    return PlannedFault(
        name, 0.5 + chance.random() * SPAN_S, chance.choice(kind.targets), lasts_s, Random(chance.random())
    )


async def carry_out(cluster: Cluster, fault: PlannedFault) -> None:
    """Wait for a fault's time, cause it, and end it."""
    await asyncio.sleep(fault.at_s - cluster.loop.time())
    cluster.history.add(Fault(cluster.loop.time(), fault.kind, fault.target))
    cluster.history.coverage[f"fault {fault.kind}"] += 1
    await KINDS[fault.kind].act(cluster, fault)
    cluster.history.add(FaultOver(cluster.loop.time(), fault.kind, fault.target))

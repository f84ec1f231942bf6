"""Faults with two agents of one instance, of which one must end without harm to the work of the other."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from simulation.cluster import Cluster
from simulation.faults.kind import AGENTS, Kind, PlannedFault
from simulation.network import Outage, Server
from simulation.settings import DOUBLES


async def _double(cluster: Cluster, fault: PlannedFault) -> None:
    """Start a second agent of an instance on another machine; it is killed at the end if it lives."""
    (name,) = (double for double, instance in DOUBLES.items() if instance == fault.target)
    cluster.start(name)
    await asyncio.sleep(fault.lasts_s)
    cluster.kill(name)


async def _take_over(cluster: Cluster, fault: PlannedFault) -> None:
    """Start a second agent while the first stands still or cannot reach the store, and until it is back."""
    process = cluster.process(fault.target)
    if process is not None and fault.chance.random() < 0.5:
        process.stand_still()
    else:
        outage = Outage(cluster.loop.time() + fault.lasts_s / 2, silent=fault.chance.random() < 0.5)
        cluster.network.disconnect(fault.target, Server.STORE, outage)
    double = asyncio.create_task(_double(cluster, fault))
    await asyncio.sleep(fault.lasts_s / 2)
    if process is not None:
        process.go_on()
    await double


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "agent doubled": Kind(_double, AGENTS, (1.0, 10.0)),
        "agent taken over": Kind(_take_over, AGENTS, (8.0, 20.0)),
    }
)

"""Faults of processes: killed, stopped, drained, standing still, with a wrong clock."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from simulation.cluster import Cluster
from simulation.faults.kind import AGENTS, ALL_PROCESSES, Kind, PlannedFault
from simulation.settings import CONTROLLERS, GATEWAYS


async def _kill(cluster: Cluster, fault: PlannedFault) -> None:
    cluster.kill(fault.target)
    await asyncio.sleep(fault.lasts_s)
    cluster.start(fault.target)


async def _stop(cluster: Cluster, fault: PlannedFault) -> None:
    if cluster.process(fault.target) is not None:
        await cluster.stop(fault.target)
    await asyncio.sleep(fault.lasts_s)
    cluster.start(fault.target)


async def _drain(cluster: Cluster, fault: PlannedFault) -> None:
    await cluster.drain(fault.target)
    await asyncio.sleep(fault.lasts_s)
    # An agent that has not drained by then is killed, as a supervisor would do.
    cluster.kill(fault.target)
    cluster.start(fault.target)


async def _stand_still(cluster: Cluster, fault: PlannedFault) -> None:
    """Pause a process, as SIGSTOP does; in half of the cases the broker drops its connection meanwhile."""
    process = cluster.process(fault.target)
    if process is None:
        return
    process.stand_still()
    await asyncio.sleep(fault.lasts_s / 2)
    if process.alive and fault.chance.random() < 0.5:
        cluster.drop_broker(fault.target)
    await asyncio.sleep(fault.lasts_s / 2)
    process.go_on()


async def _jump_clock(cluster: Cluster, fault: PlannedFault) -> None:
    process = cluster.process(fault.target)
    if process is not None:
        seconds = fault.chance.choice((-1.0, 1.0)) * fault.chance.choice((0.5, 5.0, 60.0))
        process.offset_ns += round(seconds * 1e9)


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "gateway killed": Kind(_kill, GATEWAYS, (0.1, 5.0)),
        "gateway stands still": Kind(_stand_still, GATEWAYS, (0.3, 8.0)),
        "controller killed": Kind(_kill, CONTROLLERS, (0.1, 8.0)),
        "controller stopped": Kind(_stop, CONTROLLERS, (0.1, 5.0)),
        "controller stands still": Kind(_stand_still, CONTROLLERS, (1.0, 12.0)),
        "agent killed": Kind(_kill, AGENTS, (0.1, 8.0)),
        "agent drained": Kind(_drain, AGENTS, (1.0, 4.0)),
        "agent stands still": Kind(_stand_still, AGENTS, (1.0, 12.0)),
        "clock jump": Kind(_jump_clock, ALL_PROCESSES),
    }
)

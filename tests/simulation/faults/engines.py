"""Faults of engines: killed, slow, not starting, hanging in each way that the emulator knows."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from qlm.simulator.emulation.emulator import Hang
from simulation.cluster import Cluster
from simulation.faults.kind import AGENTS, Act, Kind, PlannedFault


async def _kill(cluster: Cluster, fault: PlannedFault) -> None:
    cluster.kill_engine(fault.target, fault.chance)


async def _slow_down(cluster: Cluster, fault: PlannedFault) -> None:
    machine = cluster.machine(fault.target)
    if machine is not None:
        machine.slowness = fault.chance.choice((3.0, 10.0, 30.0))
        await asyncio.sleep(fault.lasts_s)
        machine.slowness = 1.0


async def _fail(cluster: Cluster, fault: PlannedFault) -> None:
    step = "start" if fault.kind == "failed start" else "wake"
    cluster.engine_failures[fault.target][step] += fault.chance.randint(1, 2)


def _hang(mode: Hang) -> Act:
    async def act(cluster: Cluster, fault: PlannedFault) -> None:
        """Let the awake engine hang: until it is restarted, or for a time that restarts do not shorten."""
        hang = cluster.hang_of(fault.target)
        hang.begin(mode, deaf=fault.chance.random() < 0.5, lasts=fault.chance.random() < 0.5)
        await asyncio.sleep(fault.lasts_s)
        if hang.mode is mode and (hang.lasts or mode is Hang.SLOW):
            hang.end()

    return act


HANGS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "engine admits nothing": Kind(_hang(Hang.NO_ADMISSION), AGENTS, (1.0, 12.0)),
        "engine makes no tokens": Kind(_hang(Hang.NO_TOKENS), AGENTS, (1.0, 12.0)),
        "engine request stuck": Kind(_hang(Hang.ONE_STUCK), AGENTS, (1.0, 12.0)),
        "engine ten times slower": Kind(_hang(Hang.SLOW), AGENTS, (1.0, 12.0)),
        "engine sends garbage": Kind(_hang(Hang.GARBAGE), AGENTS, (1.0, 6.0)),
        "engine half closed": Kind(_hang(Hang.HALF_CLOSED), AGENTS, (1.0, 12.0)),
    }
)
"""Hangs, which only the watchdog notices."""

KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "engine killed": Kind(_kill, AGENTS),
        "engine slow": Kind(_slow_down, AGENTS, (0.5, 5.0)),
        "failed start": Kind(_fail, AGENTS),
        "failed wake": Kind(_fail, AGENTS),
        **HANGS,
    }
)

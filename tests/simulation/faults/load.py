"""Faults of clients: floods of requests of many classes. Their scripts are drawn with the fault."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from simulation.cluster import Cluster
from simulation.faults.kind import Kind, PlannedFault
from simulation.workload import ClientScript, draw_flood

FLOOD: Final = "flood"


async def _flood(cluster: Cluster, fault: PlannedFault) -> None:
    """Do nothing: the clients send by themselves."""


KINDS: Final[Mapping[str, Kind]] = MappingProxyType({FLOOD: Kind(_flood, ("all",))})


def scripts_of(faults: Sequence[PlannedFault], first: int) -> list[ClientScript]:
    """Draw the scripts of the clients that belong to faults, numbered from `first`."""
    scripts: list[ClientScript] = []
    for fault in faults:
        if fault.kind == FLOOD:
            scripts += draw_flood(fault.chance, first + len(scripts), fault.at_s)
    return scripts

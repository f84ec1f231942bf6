"""Faults of store and broker: restarted, emptied, with lost keys, or refusing to write."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from simulation.broker_server import Alarm
from simulation.cluster import Cluster
from simulation.faults.kind import ALL_PROCESSES, Kind, PlannedFault
from simulation.network import Server
from simulation.refusals import MISCONF, NOREPLICAS, OUT_OF_MEMORY, Refusal

_SINGLE_KEYS_MAX: Final = 4
_LATE: Final = 0.3
"""Share of publications during an alarm that were already under way, and are stored at its end."""


async def _restart_store(cluster: Cluster, fault: PlannedFault) -> None:
    cluster.network.stop(Server.STORE, cluster.loop.time() + fault.lasts_s)
    await asyncio.sleep(fault.lasts_s)


async def _restart_broker(cluster: Cluster, fault: PlannedFault) -> None:
    cluster.network.stop(Server.BROKER, cluster.loop.time() + fault.lasts_s)
    for name in ALL_PROCESSES:
        cluster.drop_broker(name)
    await asyncio.sleep(fault.lasts_s)


async def _flush(cluster: Cluster, fault: PlannedFault) -> None:
    cluster.store.flush()


async def _block_publishers(cluster: Cluster, fault: PlannedFault) -> None:
    cluster.broker.alarm = Alarm(cluster.loop.time() + fault.lasts_s, lambda: fault.chance.random() < _LATE)
    await asyncio.sleep(fault.lasts_s)


async def _save_nothing(cluster: Cluster, fault: PlannedFault) -> None:
    await _refuse(cluster, MISCONF, fault.lasts_s)


async def _run_out_of_memory(cluster: Cluster, fault: PlannedFault) -> None:
    await _refuse(cluster, OUT_OF_MEMORY, fault.lasts_s)


async def _lose_replicas(cluster: Cluster, fault: PlannedFault) -> None:
    """Refuse writes with interruptions: the replicas come and go."""
    until_s = cluster.loop.time() + fault.lasts_s
    while cluster.loop.time() < until_s:
        await _refuse(cluster, NOREPLICAS, 0.1 + fault.chance.random())
        await asyncio.sleep(fault.chance.random() / 2)


async def _refuse(cluster: Cluster, refusal: Refusal, lasts_s: float) -> None:
    cluster.store.refusal = refusal
    await asyncio.sleep(lasts_s)
    if cluster.store.refusal is refusal:
        cluster.store.refusal = None


async def _lose_keys(cluster: Cluster, fault: PlannedFault) -> None:
    """Lose a few keys: each kind of key is as probable as any other."""
    for _ in range(fault.chance.randint(1, _SINGLE_KEYS_MAX)):
        keys = cluster.store.present_keys()
        kinds = list(dict.fromkeys(key.kind for key in keys))
        if kinds:
            kind = fault.chance.choice(kinds)
            cluster.store.lose(fault.chance.choice([key for key in keys if key.kind == kind]))


async def _lose_third(cluster: Cluster, fault: PlannedFault) -> None:
    for key in cluster.store.present_keys():
        if fault.chance.random() < 1 / 3:
            cluster.store.lose(key)


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "broker restarted": Kind(_restart_broker, ("broker",), (0.2, 4.0)),
        "broker blocks publishers": Kind(_block_publishers, ("broker",), (0.5, 8.0)),
        "store restarted": Kind(_restart_store, ("store",), (0.2, 4.0)),
        "store flushed": Kind(_flush, ("store",)),
        "store cannot save": Kind(_save_nothing, ("store",), (0.5, 8.0)),
        "store without replicas": Kind(_lose_replicas, ("store",), (0.5, 8.0)),
        "store out of memory": Kind(_run_out_of_memory, ("store",), (0.5, 8.0)),
        "keys lost": Kind(_lose_keys, ("store",)),
        "a third of the keys lost": Kind(_lose_third, ("store",)),
    }
)

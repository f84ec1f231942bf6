"""Faults between processes and servers: partitions, delays, repeated and unreadable messages."""

import asyncio
from collections.abc import Mapping
from random import Random
from types import MappingProxyType
from typing import Final

import orjson

from qlm.domain.ids import QueueName
from simulation.cluster import Cluster
from simulation.faults.kind import AGENTS, ALL_PROCESSES, Kind, PlannedFault
from simulation.network import Loses, Outage, Server

_GARBAGE_EVERY_S: Final = 0.3
"""Longest time between two unreadable messages."""


async def _disconnect(cluster: Cluster, fault: PlannedFault) -> None:
    await _lose(cluster, fault, Loses.BOTH, silent=fault.chance.random() < 0.5)


async def _disconnect_one_way(cluster: Cluster, fault: PlannedFault) -> None:
    await _lose(cluster, fault, fault.chance.choice((Loses.REQUESTS, Loses.ANSWERS)), silent=True)


async def _lose(cluster: Cluster, fault: PlannedFault, loses: Loses, *, silent: bool) -> None:
    server = fault.chance.choice(list(Server))
    until_s = cluster.loop.time() + fault.lasts_s
    cluster.network.disconnect(fault.target, server, Outage(until_s, silent, loses))
    await asyncio.sleep(fault.lasts_s)


async def _drop_connection(cluster: Cluster, fault: PlannedFault) -> None:
    cluster.drop_broker(fault.target)


async def _repeat(cluster: Cluster, fault: PlannedFault) -> None:
    """Store 30 % of messages twice, and make 30 % of announcements twice."""

    def repeats() -> bool:
        return fault.chance.random() < 0.3

    cluster.broker.repeats = cluster.store.repeats = repeats
    await asyncio.sleep(fault.lasts_s)
    cluster.broker.repeats = cluster.store.repeats = _never


def _never() -> bool:
    return False


async def _delay(cluster: Cluster, fault: PlannedFault) -> None:
    until_s = cluster.loop.time() + fault.lasts_s
    cluster.network.slow_down(fault.target, until_s, extra_s=fault.chance.choice((0.05, 0.5, 2.0)))
    await asyncio.sleep(fault.lasts_s)


async def _garble_channels(cluster: Cluster, fault: PlannedFault) -> None:
    """Publish what nobody can read on the channels of announcements."""
    until_s = cluster.loop.time() + fault.lasts_s
    while cluster.loop.time() < until_s:
        topics = cluster.store.topics()
        if topics:
            cluster.store.announce(fault.chance.choice(topics), _garbage(fault.chance))
        await asyncio.sleep(_GARBAGE_EVERY_S * fault.chance.random())


async def _garble_queues(cluster: Cluster, fault: PlannedFault) -> None:
    """Put messages that nobody can read into the queues of requests."""
    until_s = cluster.loop.time() + fault.lasts_s
    while cluster.loop.time() < until_s:
        queues: list[QueueName] = list(cluster.broker.names())
        if queues:
            cluster.broker.publish(fault.chance.choice(queues), _garbage(fault.chance))
        await asyncio.sleep(_GARBAGE_EVERY_S * fault.chance.random())


def _garbage(chance: Random) -> bytes:
    """Draw an unreadable message: noise, JSON of another form, or one with wrong or missing fields."""
    id = f"r{chance.randrange(200)}"
    forms = (
        chance.randbytes(chance.randint(0, 40)),
        b"null",
        b"[" * chance.choice((10, 100_000)),
        b'{"kind": "cancel", "id": 7, "outcome": "cancelled"}',
        b'{"kind": "cancel", "outcome": "nothing known"}',
        b'[{"id": "r1", "offset": "3", "token_ids": []}]',
        orjson.dumps([{"id": id, "offset": -1, "token_ids": [1, 2]}]),
        orjson.dumps([{"id": id, "offset": 0, "token_ids": [1.5, None]}]),
        orjson.dumps([{"id": id, "offset": 0, "token_ids": [], "outcome": "good"}]),
        orjson.dumps(
            [{"id": id, "offset": 10_000, "token_ids": [1]}]
        ),  # readable, and nothing comes before it
        orjson.dumps([{"id": "of nobody", "offset": 0, "token_ids": [1]}]),
    )
    return chance.choice(forms)


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "partition": Kind(_disconnect, ALL_PROCESSES, (0.2, 8.0)),
        "partition of an agent": Kind(_disconnect, AGENTS, (0.2, 8.0)),
        "partition in one direction": Kind(_disconnect_one_way, ALL_PROCESSES, (0.2, 8.0)),
        "broker connection dropped": Kind(_drop_connection, ALL_PROCESSES),
        "messages repeated": Kind(_repeat, ("all",), (1.0, 8.0)),
        "messages delayed": Kind(_delay, ALL_PROCESSES, (1.0, 8.0)),
        "garbage on channels": Kind(_garble_channels, ("all",), (0.5, 6.0)),
        "garbage in queues": Kind(_garble_queues, ("all",), (0.5, 6.0)),
    }
)

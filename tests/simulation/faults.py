"""Faults of one trial, drawn from its seed: what, when, to whom, for how long."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Final

from simulation.cluster import CONTROLLERS, GATEWAYS, INSTANCES, Cluster
from simulation.history import Fault
from simulation.network import Outage, Server
from simulation.workload import SPAN_S

FAULTS: Final = (5, 9)
"""Faults of one trial, fewest and most."""

_ALL_PROCESSES: Final = (*GATEWAYS, *CONTROLLERS, *INSTANCES)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A scheduled fault: its kind, time, target and duration."""

    kind: str
    at_s: float
    target: str
    lasts_s: float
    chance: Random


Act = Callable[[Cluster, PlannedFault], Awaitable[None]]


def draw_faults(chance: Random) -> list[PlannedFault]:
    """Draw the faults of a trial, each kind once before any comes again."""
    count = chance.randint(*FAULTS)
    kinds = chance.sample(list(KINDS), min(count, len(KINDS)))
    return [_draw(kind, chance) for kind in kinds]


def _draw(kind: str, chance: Random) -> PlannedFault:
    _, targets, (least_s, most_s) = KINDS[kind]
    lasts_s = least_s + (most_s - least_s) * chance.random() ** 2
    return PlannedFault(
        kind, 0.5 + chance.random() * SPAN_S, chance.choice(targets), lasts_s, Random(chance.random())
    )


async def carry_out(cluster: Cluster, fault: PlannedFault) -> None:
    """Wait for a fault's time, cause it, and end it."""
    await asyncio.sleep(fault.at_s - cluster.loop.time())
    cluster.history.add(Fault(cluster.loop.time(), fault.kind, fault.target))
    cluster.history.coverage[f"fault {fault.kind}"] += 1
    act, _, _ = KINDS[fault.kind]
    await act(cluster, fault)


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


async def _kill_engine(cluster: Cluster, fault: PlannedFault) -> None:
    cluster.kill_engine(fault.target, fault.chance)


async def _disconnect(cluster: Cluster, fault: PlannedFault) -> None:
    server = fault.chance.choice(list(Server))
    until_s = cluster.loop.time() + fault.lasts_s
    silent, answers_only = fault.chance.choice(((False, False), (True, False), (True, True)))
    cluster.network.disconnect(fault.target, server, Outage(until_s, silent, answers_only))
    await asyncio.sleep(fault.lasts_s)


async def _drop_connection(cluster: Cluster, fault: PlannedFault) -> None:
    cluster.drop_broker(fault.target)


async def _restart_store(cluster: Cluster, fault: PlannedFault) -> None:
    cluster.network.stop(Server.STORE, cluster.loop.time() + fault.lasts_s)
    await asyncio.sleep(fault.lasts_s)


async def _restart_broker(cluster: Cluster, fault: PlannedFault) -> None:
    cluster.network.stop(Server.BROKER, cluster.loop.time() + fault.lasts_s)
    for name in _ALL_PROCESSES:
        cluster.drop_broker(name)
    await asyncio.sleep(fault.lasts_s)


async def _flush(cluster: Cluster, fault: PlannedFault) -> None:
    cluster.store.flush()


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


async def _slow_engine(cluster: Cluster, fault: PlannedFault) -> None:
    machine = cluster.machine(fault.target)
    if machine is not None:
        machine.slowness = fault.chance.choice((3.0, 10.0, 30.0))
        await asyncio.sleep(fault.lasts_s)
        machine.slowness = 1.0


async def _fail_engine(cluster: Cluster, fault: PlannedFault) -> None:
    step = "start" if fault.kind == "failed start" else "wake"
    cluster.engine_failures[fault.target][step] += fault.chance.randint(1, 2)


async def _jump_clock(cluster: Cluster, fault: PlannedFault) -> None:
    process = cluster.process(fault.target)
    if process is not None:
        seconds = fault.chance.choice((-1.0, 1.0)) * fault.chance.choice((0.5, 5.0, 60.0))
        process.offset_ns += round(seconds * 1e9)


_AT_ONCE: Final = (0.0, 0.0)

KINDS: Final[Mapping[str, tuple[Act, tuple[str, ...], tuple[float, float]]]] = MappingProxyType(
    {
        "gateway killed": (_kill, GATEWAYS, (0.1, 5.0)),
        "controller killed": (_kill, CONTROLLERS, (0.1, 8.0)),
        "controller stopped": (_stop, CONTROLLERS, (0.1, 5.0)),
        "agent killed": (_kill, tuple(INSTANCES), (0.1, 8.0)),
        "agent drained": (_drain, tuple(INSTANCES), (1.0, 4.0)),
        "engine killed": (_kill_engine, tuple(INSTANCES), _AT_ONCE),
        "engine slow": (_slow_engine, tuple(INSTANCES), (0.5, 5.0)),
        "failed start": (_fail_engine, tuple(INSTANCES), _AT_ONCE),
        "failed wake": (_fail_engine, tuple(INSTANCES), _AT_ONCE),
        "partition": (_disconnect, _ALL_PROCESSES, (0.2, 8.0)),
        "partition of an agent": (_disconnect, tuple(INSTANCES), (0.2, 8.0)),
        "broker connection dropped": (_drop_connection, _ALL_PROCESSES, _AT_ONCE),
        "broker restarted": (_restart_broker, ("broker",), (0.2, 4.0)),
        "store restarted": (_restart_store, ("store",), (0.2, 4.0)),
        "store flushed": (_flush, ("store",), _AT_ONCE),
        "messages repeated": (_repeat, ("all",), (1.0, 8.0)),
        "messages delayed": (_delay, _ALL_PROCESSES, (1.0, 8.0)),
        "clock jump": (_jump_clock, _ALL_PROCESSES, _AT_ONCE),
    }
)
"""Each kind of fault with its action, possible targets, and shortest and longest duration in seconds."""

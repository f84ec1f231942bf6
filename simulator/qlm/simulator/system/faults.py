"""Faults of one trial, drawn from its seed: what, when, to whom, for how long."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Final

from qlm.simulator.system.cluster import CONTROLLERS, GATEWAYS, INSTANCES, Cluster
from qlm.simulator.system.history import Fault
from qlm.simulator.system.network import Cut, Server
from qlm.simulator.system.workload import SPAN_S

FAULTS: Final = (5, 9)
"""Faults of one trial, fewest and most."""

_EVERYBODY: Final = (*GATEWAYS, *CONTROLLERS, *INSTANCES)


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault to come: its kind, the moment, whom it hits, and how long it lasts."""

    kind: str
    at_s: float
    target: str
    lasts_s: float
    chance: Random


Act = Callable[[Cluster, Planned], Awaitable[None]]


def draw_faults(chance: Random) -> list[Planned]:
    """Draw the faults of a trial, each kind once before any comes again."""
    count = chance.randint(*FAULTS)
    kinds = chance.sample(list(KINDS), min(count, len(KINDS)))
    return [_draw(kind, chance) for kind in kinds]


def _draw(kind: str, chance: Random) -> Planned:
    _, targets, (least_s, most_s) = KINDS[kind]
    lasts_s = least_s + (most_s - least_s) * chance.random() ** 2
    return Planned(
        kind, 0.5 + chance.random() * SPAN_S, chance.choice(targets), lasts_s, Random(chance.random())
    )


async def carry_out(cluster: Cluster, planned: Planned) -> None:
    """Let a fault happen at its moment, and end."""
    await asyncio.sleep(planned.at_s - cluster.loop.time())
    cluster.history.add(Fault(cluster.loop.time(), planned.kind, planned.target))
    cluster.history.coverage[f"fault {planned.kind}"] += 1
    act, _, _ = KINDS[planned.kind]
    await act(cluster, planned)


async def _kill(cluster: Cluster, planned: Planned) -> None:
    cluster.kill(planned.target)
    await asyncio.sleep(planned.lasts_s)
    cluster.start(planned.target)


async def _stop(cluster: Cluster, planned: Planned) -> None:
    if cluster.process(planned.target) is not None:
        await cluster.stop(planned.target)
    await asyncio.sleep(planned.lasts_s)
    cluster.start(planned.target)


async def _drain(cluster: Cluster, planned: Planned) -> None:
    await cluster.drain(planned.target)
    await asyncio.sleep(planned.lasts_s)
    # One that has no room to drain in this time is killed, as a supervisor would.
    cluster.kill(planned.target)
    cluster.start(planned.target)


async def _kill_engine(cluster: Cluster, planned: Planned) -> None:
    cluster.kill_engine(planned.target, planned.chance)


async def _cut(cluster: Cluster, planned: Planned) -> None:
    server = planned.chance.choice(list(Server))
    until_s = cluster.loop.time() + planned.lasts_s
    silent, answers_only = planned.chance.choice(((False, False), (True, False), (True, True)))
    cluster.network.cut(planned.target, server, Cut(until_s, silent, answers_only))
    await asyncio.sleep(planned.lasts_s)


async def _drop_connection(cluster: Cluster, planned: Planned) -> None:
    cluster.drop_broker(planned.target)


async def _restart_store(cluster: Cluster, planned: Planned) -> None:
    cluster.network.stop(Server.STORE, cluster.loop.time() + planned.lasts_s)
    await asyncio.sleep(planned.lasts_s)


async def _restart_broker(cluster: Cluster, planned: Planned) -> None:
    cluster.network.stop(Server.BROKER, cluster.loop.time() + planned.lasts_s)
    for name in _EVERYBODY:
        cluster.drop_broker(name)
    await asyncio.sleep(planned.lasts_s)


async def _flush(cluster: Cluster, planned: Planned) -> None:
    cluster.store.flush()


async def _repeat(cluster: Cluster, planned: Planned) -> None:
    """Store messages twice and announce things twice, now and then."""

    def repeats() -> bool:
        return planned.chance.random() < 0.3

    cluster.broker.repeats = cluster.store.repeats = repeats
    await asyncio.sleep(planned.lasts_s)
    cluster.broker.repeats = cluster.store.repeats = _never


def _never() -> bool:
    return False


async def _delay(cluster: Cluster, planned: Planned) -> None:
    until_s = cluster.loop.time() + planned.lasts_s
    cluster.network.slow_down(planned.target, until_s, extra_s=planned.chance.choice((0.05, 0.5, 2.0)))
    await asyncio.sleep(planned.lasts_s)


async def _slow_engine(cluster: Cluster, planned: Planned) -> None:
    machine = cluster.machine(planned.target)
    if machine is not None:
        machine.slowness = planned.chance.choice((3.0, 10.0, 30.0))
        await asyncio.sleep(planned.lasts_s)
        machine.slowness = 1.0


async def _fail_engine(cluster: Cluster, planned: Planned) -> None:
    step = "start" if planned.kind == "failed start" else "wake"
    cluster.troubles[planned.target][step] += planned.chance.randint(1, 2)


async def _jump_clock(cluster: Cluster, planned: Planned) -> None:
    process = cluster.process(planned.target)
    if process is not None:
        seconds = planned.chance.choice((-1.0, 1.0)) * planned.chance.choice((0.5, 5.0, 60.0))
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
        "partition": (_cut, _EVERYBODY, (0.2, 8.0)),
        "partition of an agent": (_cut, tuple(INSTANCES), (0.2, 8.0)),
        "broker connection dropped": (_drop_connection, _EVERYBODY, _AT_ONCE),
        "broker restarted": (_restart_broker, ("broker",), (0.2, 4.0)),
        "store restarted": (_restart_store, ("store",), (0.2, 4.0)),
        "store flushed": (_flush, ("store",), _AT_ONCE),
        "messages repeated": (_repeat, ("all",), (1.0, 8.0)),
        "messages delayed": (_delay, _EVERYBODY, (1.0, 8.0)),
        "clock jump": (_jump_clock, _EVERYBODY, _AT_ONCE),
    }
)
"""Kinds of faults: what happens, whom it may hit, and how long it lasts at least and at most, seconds."""

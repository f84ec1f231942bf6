"""One trial: the whole system under the faults of one seed, and the violations that checkers find."""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from simulation.checkers.verdict import violations
from simulation.client import Client
from simulation.cluster import Cluster
from simulation.faults.kind import PlannedFault
from simulation.faults.load import scripts_of
from simulation.faults.plan import carry_out, draw_faults
from simulation.history import Event, Failed, History
from simulation.parts import PRODUCTION, Parts
from simulation.process import own_tasks
from simulation.settings import DOUBLES
from simulation.virtual_loop import VirtualLoop
from simulation.workload import REQUESTS, SPAN_S, ClientScript, draw_scripts

PATIENCE_S: Final = 60.0
"""Time within which all requests must be answered after the last fault and the last request."""

SILENCE_S: Final = 35.0
"""Time after the end of all requests in which each client must receive its end.

Gateways look up silent requests every 4 s. They wait 15 s for a shorter log to grow again, and 12 s for an
unknown request to be found. A controller, which may be down for 8 s, has to read the queues for that.
"""

LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Result of one seed.

    Attributes:
        violations: Sentences of the checkers; empty if all claims hold.
        coverage: Occurrences of each state.
        requests: Number of requests sent.
        faults: Kinds of its faults.
        simulated_s: Virtual seconds.
    """

    seed: int
    violations: tuple[str, ...]
    coverage: Counter[str]
    events: tuple[Event, ...]
    requests: int
    faults: tuple[str, ...]
    simulated_s: float


def run_trial(
    seed: int,
    parts: Parts = PRODUCTION,
    *,
    requests: int = REQUESTS,
    with_faults: bool = True,
    kinds: Collection[str] | None = None,
) -> Trial:
    """Run one trial; equal seeds give equal histories.

    Args:
        seed: Source of all randomness.
        parts: Production's parts, or faulty ones in tests of the checkers.
        requests: Number of clients.
        with_faults: Draw faults; False for a quiet run.
        kinds: Draw only faults of these kinds; None for all kinds.
    """
    history = History()
    scripts = draw_scripts(Random(f"{seed} requests"), requests)
    faults = draw_faults(Random(f"{seed} faults"), kinds) if with_faults else []
    scripts += scripts_of(faults, len(scripts))
    with _quiet(), _without_cycle_collector():
        simulated_s = _run(seed, parts, history, scripts, faults)
    return Trial(
        seed=seed,
        violations=tuple(violations(history.events, scripts)),
        coverage=history.coverage,
        events=tuple(history.events),
        requests=len(scripts),
        faults=tuple(fault.kind for fault in faults),
        simulated_s=simulated_s,
    )


def _run(
    seed: int, parts: Parts, history: History, scripts: list[ClientScript], faults: list[PlannedFault]
) -> float:
    loop = VirtualLoop()
    own_tasks(loop)
    loop.set_exception_handler(lambda _, context: history.add(_failed(loop, context)))
    try:
        cluster = Cluster(loop, parts, seed, history)
        loop.run_until_complete(_live(cluster, seed, scripts, faults))
        simulated_s = loop.time()
        history.closed = True
        loop.run_until_complete(_end(cluster))
    finally:
        loop.close()
    return simulated_s


async def _live(cluster: Cluster, seed: int, scripts: list[ClientScript], faults: list[PlannedFault]) -> None:
    """Run clients and faults until all requests are answered or `PATIENCE_S` is over."""
    loop, chance = cluster.loop, Random(f"{seed} clients")
    cluster.start_all()
    clients = [
        loop.create_task(Client(script, lambda: cluster.gateway(chance), loop, cluster.history).run())
        for script in scripts
    ]
    tasks = [loop.create_task(carry_out(cluster, fault)) for fault in faults]
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        task.result()
    await _until_answered(cluster, clients)
    for client in clients:
        if client.done():
            client.result()
    for name in cluster.names:
        if cluster.process(name) is None:
            cluster.history.add(Failed(loop.time(), name, "it is down at the end"))


async def _until_answered(cluster: Cluster, clients: "list[asyncio.Task[None]]") -> None:
    loop = cluster.loop
    give_up_s = max(loop.time(), SPAN_S) + PATIENCE_S
    silent_since_s = loop.time()
    while loop.time() < give_up_s:
        await asyncio.sleep(LOOK_S)
        if not cluster.history.all_ended:
            silent_since_s = loop.time()
        elif all(client.done() for client in clients) or loop.time() > silent_since_s + SILENCE_S:
            return


async def _end(cluster: Cluster) -> None:
    """Tear everything down."""
    for name in (*cluster.names, *DOUBLES):
        cluster.kill(name)
    while left := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left)


def _failed(loop: VirtualLoop, context: dict[str, Any]) -> Failed:
    return Failed(loop.time(), "event loop", repr(context.get("exception") or context["message"]))


@contextmanager
def _quiet() -> Iterator[None]:
    """Switch logging off: logs of faults would take most of the time."""
    logger = logging.getLogger("qlm")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _without_cycle_collector() -> Iterator[None]:
    """Switch the cycle collector off: it finds little and takes a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

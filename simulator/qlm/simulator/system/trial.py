"""One trial: the whole system under the faults of one seed, and what the checkers say of it."""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from qlm.simulator.system.checkers.verdict import violations
from qlm.simulator.system.client import Client
from qlm.simulator.system.cluster import Cluster
from qlm.simulator.system.faults import Planned, carry_out, draw_faults
from qlm.simulator.system.history import Event, Failed, History
from qlm.simulator.system.parts import PRODUCTION, Parts
from qlm.simulator.system.process import own_tasks
from qlm.simulator.system.virtual_loop import VirtualLoop
from qlm.simulator.system.workload import SPAN_S, Errand, draw_errands

PATIENCE_S: Final = 60.0
"""When the last fault has ended and the last request was sent, all must be answered within this."""

SILENCE_S: Final = 35.0
"""A client that has heard nothing for so long after all requests have ended never will: gateways look up
what is silent every 4 s, believe for 15 s that a shorter log may grow again, and for 12 s that a request may
be found that is not known, once a controller, which may be away for 8 s, has read the queues."""

LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of one seed.

    Attributes:
        seed: The seed.
        violations: What should not have happened, in words; empty if all is well.
        coverage: How often each state was reached.
        events: The history.
        requests: Requests that were sent.
        faults: Faults that happened.
        simulated_s: Virtual seconds.
    """

    seed: int
    violations: tuple[str, ...]
    coverage: Counter[str]
    events: tuple[Event, ...]
    requests: int
    faults: int
    simulated_s: float


def run_trial(seed: int, parts: Parts = PRODUCTION) -> Trial:
    """Run one trial; equal seeds give equal histories.

    Args:
        seed: Decides everything.
        parts: What is tried; a test may plant something faulty.
    """
    history = History()
    errands = draw_errands(Random(f"{seed} requests"))
    faults = draw_faults(Random(f"{seed} faults"))
    with _quiet(), _no_search_for_cycles():
        simulated_s = _run(seed, parts, history, errands, faults)
    return Trial(
        seed=seed,
        violations=tuple(violations(history.events, errands)),
        coverage=history.coverage,
        events=tuple(history.events),
        requests=len(errands),
        faults=len(faults),
        simulated_s=simulated_s,
    )


def _run(seed: int, parts: Parts, history: History, errands: list[Errand], faults: list[Planned]) -> float:
    loop = VirtualLoop()
    own_tasks(loop)
    loop.set_exception_handler(lambda _, context: history.add(_failed(loop, context)))
    try:
        cluster = Cluster(loop, parts, seed, history)
        loop.run_until_complete(_live(cluster, seed, errands, faults))
        simulated_s = loop.time()
        history.closed = True
        loop.run_until_complete(_end(cluster))
    finally:
        loop.close()
    return simulated_s


async def _live(cluster: Cluster, seed: int, errands: list[Errand], faults: list[Planned]) -> None:
    """Let clients and faults do their work, until all is answered or the patience is over."""
    loop, chance = cluster.loop, Random(f"{seed} clients")
    cluster.start_all()
    clients = [
        loop.create_task(Client(errand, lambda: cluster.door(chance), loop, cluster.history).run())
        for errand in errands
    ]
    troubles = [loop.create_task(carry_out(cluster, planned)) for planned in faults]
    await asyncio.wait(troubles)
    for trouble in troubles:
        trouble.result()
    await _until_answered(cluster, clients)
    for client in clients:
        if client.done():
            client.result()


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
    for name in cluster.names:
        cluster.kill(name)
    while left := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left)


def _failed(loop: VirtualLoop, context: dict[str, Any]) -> Failed:
    return Failed(loop.time(), "event loop", repr(context.get("exception") or context["message"]))


@contextmanager
def _quiet() -> Iterator[None]:
    """Log nothing: what is logged of faults would be most of the work."""
    logger = logging.getLogger("qlm")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Search for no cycles meanwhile: there is little to find, and the search takes a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

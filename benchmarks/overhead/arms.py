"""Two ways to keep an engine full: directly, and by an agent from a filled queue."""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.overhead.meter import Filled, Meter, filled
from benchmarks.overhead.work import Work, draw, gateway_body
from qlm.agents.core.kv_ledger import SLOTS_PER_OVERCOMMIT
from support.ports import free_port
from support.qlm_process import QlmProcess
from support.rabbitmq import running_rabbitmq
from support.redis import running_redis

DIRECT, EMBEDDED, SERVERS = "direct", "embedded", "servers"
ARMS: Final = (DIRECT, EMBEDDED, SERVERS)

AT_ONCE: Final = 32
"""Requests that are submitted to the queue at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUnderTest:
    """Running engine.

    Attributes:
        url: Its address.
        group: Its process group.
        model: What QLM's configuration says of its model.
        seqs_max: Places in its batch.
        sample_s: Between two readings of its metrics.
        timeout_s: Longest run.
    """

    url: str
    group: int
    model: dict[str, Any]
    seqs_max: int
    sample_s: float
    timeout_s: float = 600.0


@contextlib.contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """Restrict this process, and all that it starts, to some cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure(arm: str, engine: EngineUnderTest, requests: int, seed: int) -> Filled:
    """Have the work done in one arm; return the engine's figures."""
    with Meter(engine.url, engine.group, engine.sample_s) as meter:
        if arm == DIRECT:
            _directly(engine, requests, seed)
        else:
            work = draw(requests, seed=seed, arm=arm)
            with _queued(engine, work, servers=arm == SERVERS) as processes:
                for process in processes:
                    process.start()
                meter.wait(lambda meter: meter.written() >= sum(work.tokens), engine.timeout_s)
    return filled(meter.samples, seqs_max=engine.seqs_max, requests=requests)


def _directly(engine: EngineUnderTest, requests: int, seed: int) -> None:
    at_once = engine.seqs_max + engine.seqs_max // SLOTS_PER_OVERCOMMIT
    words = (engine.url, engine.model["id"], at_once, requests, seed, DIRECT)
    argv = [sys.executable, "-m", "benchmarks.overhead.direct", *map(str, words)]
    subprocess.run(argv, check=True, timeout=engine.timeout_s)


@contextlib.contextmanager
def _queued(engine: EngineUnderTest, work: Work, *, servers: bool) -> Iterator[list[QlmProcess]]:
    """Queue the work; yield the processes whose start begins it."""
    instance = {
        "id": "i0", "accelerator": "A100", "models": [engine.model["id"]],
        "url": engine.url, "seqs_max": engine.seqs_max,
    }  # fmt: skip
    config: dict[str, Any] = {"models": [engine.model], "instances": [instance]}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qlm-overhead-")))

        def part(name: str, *command: str) -> QlmProcess:
            whole = {"data_dir": str(folder / "data"), "http": {"port": free_port()}, **config}
            process = QlmProcess(name, *command, config=whole, folder=folder)
            stack.callback(process.close)
            return process

        if servers:
            config |= {"broker": stack.enter_context(running_rabbitmq()).url}
            config |= {"store": stack.enter_context(running_redis()).url}
            gateway, controller = part("gateway", "gateway"), part("controller", "controller")
            controller.start()
            last = part("agent", "agent", "i0")
        else:
            gateway, last = part("gateway", "serve", "--no-agents"), part("serve", "serve")
        gateway.start()
        gateway.wait_ready()
        asyncio.run(_queue_all(gateway.url, engine.model["id"], work))
        if not servers:
            gateway.terminate()
        yield [last]


async def _queue_all(url: str, model: str, work: Work) -> None:
    numbers = iter(range(work.count))
    async with aiohttp.ClientSession() as session:

        async def queue() -> None:
            for n in numbers:
                body, headers = gateway_body(model, work, n), {"Prefer": "respond-async"}
                async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
                    if answer.status != 202:
                        raise RuntimeError(f"the gateway answered {answer.status}: {await answer.text()}")

        await asyncio.gather(*(queue() for _ in range(AT_ONCE)))

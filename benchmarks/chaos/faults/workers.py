"""Kind `worker`: a gateway worker that is killed or that hangs, in a `qlm serve` of its own under load.

Workers share the embedded queue and state of one process, so the cluster of the round has none.
"""

import asyncio
import os
import random
import signal
from functools import partial
from typing import Any, Final

from benchmarks.chaos.clients import Clients
from benchmarks.chaos.faults.fault import Hit, Kind
from benchmarks.chaos.rig import MODEL, PLACES, Rig
from benchmarks.chaos.traffic import Traffic, count_ends, until
from benchmarks.chaos.verdict import judge
from support.gateway_workers import open_files, workers_of
from support.ports import free_port
from support.qlm_process import QlmProcess, serving

WORKERS: Final = 2
REPLACED_S: Final = 90.0
"""Time in which another worker must run."""

OVER_S: Final = 120.0
LOAD_S: Final = (2.0, 4.0)
"""Shortest and longest time of load before the fault, and after its repair."""


def strike(number: signal.Signals, rig: Rig, rng: random.Random) -> Hit:
    """Send a signal to the worker with most connections, and account for every request."""
    target = f"worker ({number.name})"
    with serving(_config()) as serve:
        return Hit(target=target, unkept=asyncio.run(_play(serve, number, rng)))


async def _play(serve: QlmProcess, number: signal.Signals, rng: random.Random) -> str:
    clients = Clients([serve.url], random.Random(rng.getrandbits(64)))
    traffic = Traffic(clients, random.Random(rng.getrandbits(64)))
    arriving = asyncio.create_task(traffic.arrive())
    ends: dict[str, int] = {}
    try:
        await until(lambda: len(workers_of(serve.pid)) == WORKERS, REPLACED_S)
        await asyncio.sleep(rng.uniform(*LOAD_S))
        hit = max(workers_of(serve.pid), key=open_files)
        os.kill(hit, number)
        replaced = await until(lambda: len(workers_of(serve.pid) - {hit}) == WORKERS, REPLACED_S)
        await asyncio.sleep(rng.uniform(*LOAD_S))
        arriving.cancel()
        await until(lambda: all(one.over for one in traffic.requests), OVER_S)
        await count_ends(serve.admin_url, ends)
    finally:
        arriving.cancel()
        await traffic.give_up()
        await clients.close()
    verdict = judge(traffic.requests, ends, ())
    kept = () if replaced else (f"worker {hit} was not replaced",)
    return "; ".join([*kept, *(verdict.incidents if not verdict.clean else ())])


def _config() -> dict[str, Any]:
    instance = {"id": "of-workers", "accelerator": "A100", "models": [MODEL], "seqs_max": 3 * PLACES}
    return {
        "models": [{"id": MODEL, "profile": "mistral-7b", "context_tokens": 4096}],
        "instances": [instance],
        "emulate": {"time_scale": 1.0},
        "http": {"port": free_port(), "workers": WORKERS},
    }


WORKER_FAULTS: Final = tuple(
    Kind(name=f"worker-{name}", group="worker", strike=partial(strike, number))
    for name, number in (("kill", signal.SIGKILL), ("stop", signal.SIGSTOP))
)

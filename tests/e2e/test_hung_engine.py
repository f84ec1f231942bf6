"""Engines that hang while their health probes answer: their requests go on, and they are replaced."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count

import httpx
import pytest

from benchmarks.chaos.client_request import ClientRequest
from benchmarks.chaos.clients import Clients
from qlm.domain.shell.tasks import end_tasks
from support.flaky import until
from support.hung_engines import engine_of, hang
from support.qlm_process import QlmProcess, awake_instances, emulated, serving

MODEL = "mistral-7b"
STREAMS, TOKENS, PLACES = 8, 1500, 6
OVER_S = 90.0
"""Limit for what must come to pass; how fast it does is measured by `benchmarks.hang`."""


@pytest.fixture
def served() -> Iterator[QlmProcess]:
    config = emulated(MODEL, instances=2, time_scale=0.5, watchdog={"silence_s": 4})
    for instance in config["instances"]:
        instance["seqs_max"] = PLACES
    with serving({**config, "default_slo": {"deadline_ms": 600_000}}) as process:
        yield process


class Streams:
    """Streams that run until they have their whole answer."""

    def __init__(self, url: str) -> None:
        self.all: list[ClientRequest] = []
        self.clients = Clients([url], random.Random(1))
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, name: str, tokens: int = TOKENS) -> None:
        one = ClientRequest(
            key=name, kind="stream", tokens=tokens, slo=None, model=MODEL, sent_s=time.monotonic()
        )
        self.all.append(one)
        self._tasks.append(asyncio.create_task(self.clients.carry(one)))

    async def ended(self) -> None:
        async with asyncio.timeout(OVER_S):
            await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.clients.close()


@pytest.fixture
async def streams(served: QlmProcess) -> AsyncIterator[Streams]:
    made = Streams(served.url)
    try:
        yield made
    finally:
        await made.close()


def restarts(process: QlmProcess) -> float:
    lines = httpx.get(f"{process.admin_url}/metrics", timeout=120).text.splitlines()
    counted = (line for line in lines if line.startswith("qlm_agent_engine_restarts_total"))
    return sum(float(line.split()[-1]) for line in counted)


def running(process: QlmProcess) -> dict[str, int]:
    """Return how many requests each live instance runs."""
    listed = (
        httpx.get(f"{process.admin_url}/admin/v1/instances", timeout=120)
        .raise_for_status()
        .json()["instances"]
    )
    return {each["id"]: int(each["running"]) for each in listed}


async def holds(condition: Callable[[], bool]) -> None:
    """Wait until what a server is asked holds, beside the streams."""

    async def asked() -> bool:
        await asyncio.sleep(0.1)
        return await asyncio.to_thread(condition)

    await until(asked, OVER_S)


async def send_later(streams: Streams, name: str) -> None:
    """Send requests until cancelled: an engine that admits nothing hangs for later ones only.

    They are more than one engine has places for, so that the other one gets some, too.
    """
    for number in count():
        streams.begin(f"{name} later {number}", tokens=TOKENS // 2)
        await asyncio.sleep(0.5)


@pytest.mark.parametrize("mode", ["no_tokens", "no_admission"])
async def test_requests_of_an_engine_that_hangs_are_answered_and_it_is_replaced(
    served: QlmProcess, streams: Streams, mode: str
) -> None:
    for n in range(STREAMS):
        streams.begin(f"{mode} {n}")
    await holds(lambda: len(running(served)) == 2 and all(running(served).values()))
    victim, _ = min(running(served).items(), key=lambda each: each[1])
    before = engine_of(served.pid, victim)
    await asyncio.to_thread(hang, mode, *before)
    later = asyncio.create_task(send_later(streams, mode))
    try:
        await holds(lambda: restarts(served) > 0)
    finally:
        await end_tasks([later])
    await streams.ended()
    assert [one.key for one in streams.all if not (one.answered and one.gap_free)] == []
    await holds(lambda: awake_instances(served.admin_url) == 2)
    assert engine_of(served.pid, victim)[1] != before[1]

"""Clients of all kinds at once on a cluster with one emulated model, and what they were answered."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx
import pika
import pytest

from qlm.broker.topology import REGISTRY
from support.cluster import Cluster
from support.rabbitmq import RabbitMQ
from support.redis import RedisServer

MODEL = "faulted"
PROMPTS, TOKENS, PLACES = 8, 150, 16
STREAMS, PLAIN, DETACHED = 36, 12, 72
QUEUED_MIN, MORE, DETACHED_MAX = 30, 12, 400
OVER_S = 75.0
"""Longest time from a fault until everything accepted before it must have ended."""


def body(n: int, **more: Any) -> dict[str, Any]:
    whole = {"model": MODEL, "prompt": f"story {n % PROMPTS}", "max_tokens": TOKENS, "ignore_eos": True}
    return whole | more


def reference(url: str, n: int) -> str:
    answer = httpx.post(f"{url}/v1/completions", json=body(n), timeout=60).raise_for_status().json()
    text: str = answer["choices"][0]["text"]
    return text


@dataclass(slots=True)
class Streamed:
    """What one streaming client saw: (when, offset, text), and how it ended."""

    n: int
    parts: list[tuple[float, int, str]] = field(default_factory=list)
    finish: str = ""

    @property
    def text(self) -> str:
        return "".join(text for _, _, text in self.parts)


class Load:
    """Clients of all kinds at once."""

    def __init__(
        self, parts: Cluster, rabbitmq: RabbitMQ, expected: list[str], client: httpx.AsyncClient
    ) -> None:
        self._parts = parts
        self.rabbitmq = rabbitmq
        self.admin_url = parts.admin_url
        self.expected = expected
        self.client = client
        self.streams = [Streamed(n) for n in range(STREAMS)]
        self.plain: list[asyncio.Task[httpx.Response]] = []
        self.ids: dict[str, int] = {}
        self.records: dict[str, dict[str, Any]] = {}
        self.not_found: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, *, streams: int = STREAMS, plain: int = PLAIN, detached: int = DETACHED) -> None:
        """Submit everything, streams first."""
        del self.streams[streams:]
        self._tasks = [asyncio.create_task(self._stream(each)) for each in self.streams]
        await until(lambda: len(self._opened) == streams, "all streams are accepted")
        self.plain = [
            asyncio.create_task(self.client.post("/v1/completions", json=body(n))) for n in range(plain)
        ]
        for n in range(detached):
            await self.submit(n)

    async def submit(self, n: int) -> None:
        """Submit one request that is asked about later."""
        headers = {"Prefer": "respond-async"}
        answer = await self.client.post("/v1/completions", json=body(n), headers=headers)
        assert answer.status_code == 202, answer.text
        self.ids[answer.json()["id"]] = n

    async def busy(self) -> None:
        """Wait until all places are taken, many requests wait and streams have shown tokens."""

        async def is_busy() -> bool:
            running = sum(each["running"] for each in await self.listed("instances"))
            queued = sum(each["queued"] for each in await self.listed("queues", "classes"))
            shown = sum(len(each.parts) >= 5 for each in self.streams)
            if queued < QUEUED_MIN and len(self.ids) < DETACHED_MAX:
                await self._add()  # on a slow machine the first ones are served before both engines are full
            return running >= 2 * PLACES - 2 and queued >= QUEUED_MIN and shown >= 10

        await until(is_busy, "the cluster is busy")
        self._tasks.append(asyncio.create_task(self._ask()))

    def empty(self, redis: RedisServer) -> None:
        """Delete all data of a Redis, and ask no more for what had ended by then: its answers are gone."""
        for member in redis.flush(read="qlm:ended"):
            id = member.decode().partition(":")[2]
            self.ids.pop(id, None)
            self.records.pop(id, None)

    async def _add(self) -> None:
        """Submit more streams, and more requests that are asked about later."""
        for _ in range(MORE):
            self.streams.append(Streamed(len(self.streams)))
            self._tasks.append(asyncio.create_task(self._stream(self.streams[-1])))
        for n in range(MORE):
            await self.submit(n)

    async def listed(self, what: str, key: str = "") -> list[dict[str, Any]]:
        """One list of the operators' interface, asked for again while a server behind it is away."""
        found: list[dict[str, Any]] = []

        async def is_answered() -> bool:
            answer = await self.client.get(f"{self.admin_url}/admin/v1/{what}", params={"limit": 1000})
            if answer.status_code == 503:
                return False
            found[:] = answer.raise_for_status().json()[key or what]
            return True

        await until(is_answered, f"{what} are listed")
        return found

    async def end(self) -> None:
        """Wait until every client has what it came for."""
        try:
            async with asyncio.timeout(OVER_S):
                await asyncio.gather(*self._tasks, *self.plain)
                await self._ask()  # for what was submitted when all before had ended
        except TimeoutError:
            pytest.fail(await self._unfinished(), pytrace=False)

    def silence_s(self, since: float) -> float:
        """Longest silence of a stream, between two tokens of it, that ended after a moment."""
        times = [[at for at, _, _ in each.parts] for each in self.streams]
        return max(
            (after - before for each in times for before, after in pairwise(each) if after > since),
            default=0.0,
        )

    @property
    def _opened(self) -> list[Streamed]:
        return [each for each in self.streams if each.finish]

    async def _stream(self, into: Streamed) -> None:
        asked, resumable = body(into.n, stream=True), {"x-qlm-stream": "resumable"}
        async with self.client.stream("POST", "/v1/completions", json=asked, headers=resumable) as answer:
            assert answer.status_code == 200, await answer.aread()
            into.finish = "open"
            await read_stream(answer.aiter_lines(), into)

    async def _ask(self) -> None:
        while self.ids.keys() - self.records.keys():
            for id in [id for id in self.ids if id not in self.records]:
                answer = await self.client.get(f"/v1/requests/{id}")
                if answer.status_code == 404 and id in self.ids:
                    self.not_found.add(id)
                elif answer.status_code == 200 and answer.json()["status"] == "ended":
                    self.records[id] = answer.json()
                else:
                    assert answer.status_code in (200, 404, 503), answer.text
            await asyncio.sleep(0.2)

    async def _unfinished(self) -> str:
        stories = [
            json.dumps([each[key] for key in ("id", "status", "outcome", "detached", "events")])
            for each in await self.listed("requests")
            if each["status"] != "ended"
        ]
        open_streams = [each.n for each in self.streams if each.finish == "open"]
        lost = [id for id in self.ids if id not in self.records]
        plain = sum(not each.done() for each in self.plain)
        lines = [
            f"unfinished after {OVER_S} s: streams {open_streams}, {plain} plain, detached {lost}",
            f"unknown to the gateway: {sorted(self.not_found)}",
            f"in the store, not ended: {len(stories)}",
            *stories[:6],
            f"{await self.listed('instances')}",
            f"{await self.listed('queues', 'virtual_queues')}",
            f"{depths(self.rabbitmq.url)}",
            *(process.log() for process in self._parts.processes),
        ]
        return "\n".join(lines)


async def read_stream(lines: AsyncIterator[str], into: Streamed) -> None:
    offset = 0
    async for line in lines:
        if line.startswith("id: "):
            offset = int(line.removeprefix("id: "))
        elif line.startswith("data: ") and line != "data: [DONE]":
            data = json.loads(line.removeprefix("data: "))
            if "error" in data:
                into.finish = data["error"]["code"]
                continue
            choice = data["choices"][0]
            into.parts.append((time.monotonic(), offset, choice["text"]))
            into.finish = choice["finish_reason"] or into.finish


async def until(holds: Callable[[], Any], what: str, *, timeout_s: float = 40.0) -> None:
    """Wait until `holds()`, which may be a coroutine, is true."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        tracked = holds()
        if await tracked if asyncio.iscoroutine(tracked) else tracked:
            return
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.05)


def depths(url: str) -> dict[str, int]:
    """Messages ready in each registered queue of the RabbitMQ at a URL."""
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        registry = connection.channel()
        names = set()
        while (got := registry.basic_get(REGISTRY))[0] is not None:
            names.add(got[2].decode())
        registry.close()  # puts the names back
        channel = connection.channel()
        return {name: channel.queue_declare(name, passive=True).method.message_count for name in names}

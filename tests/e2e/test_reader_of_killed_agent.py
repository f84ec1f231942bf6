"""A reader whose agent is killed in mid-stream waits for the gap, once, and the gateway counts the same."""

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from qlm.domain.streaming.reader import Reader
from qlm.domain.streaming.timeline import Timeline
from support import rabbitmq as rabbitmq_support
from support import redis as redis_support
from support.cluster import Cluster, cluster
from support.cluster_load import until
from support.emulated_engine import engine_command
from support.exposition import value
from support.needs import need
from support.ports import free_port
from support.process import ServerProcess
from support.rabbitmq import running_rabbitmq
from support.redis import running_redis

pytestmark = pytest.mark.servers

MODEL, INSTANCE = "read", "attached"
STREAMS, TOKENS, SHOWN = 3, 400, 100
TTFT_MS, PACE = 500, 60.0
"""Iterations take 25 ms, so the reader is faster and has nothing unread: all of the gap is idle time."""

AGREE_S = 0.25
"""Difference of idle time that the way from the gateway to the client may make on a busy machine."""


@dataclass
class Reading:
    """What one client saw.

    Attributes:
        events: Each event with tokens: when, and the tokens up to there.
        idle_s: Idle time of its reader after each of them.
    """

    events: list[tuple[float, int]] = field(default_factory=list)
    idle_s: list[float] = field(default_factory=list)
    finish: str = ""

    @property
    def longest_gap(self) -> int:
        """Number of the event that ends the longest silence."""
        gaps = [after - before for (before, _), (after, _) in pairwise(self.events)]
        return 1 + gaps.index(max(gaps))


@pytest.fixture
def parts() -> Iterator[Cluster]:
    need(rabbitmq_support.missing() or redis_support.missing())
    port = free_port()
    instance = {"id": INSTANCE, "accelerator": "A100", "models": [MODEL], "url": f"http://127.0.0.1:{port}"}
    config = {
        "models": [{"id": MODEL, "profile": "mistral-7b", "context_tokens": 4096}],
        "instances": [instance],
    }
    with (
        tempfile.TemporaryDirectory(prefix="qlm-reader-") as folder,
        running_rabbitmq() as rabbitmq,
        running_redis() as redis,
    ):
        command = engine_command(port, MODEL, seqs_max=8, more=("--time-scale", "2"))
        engine = ServerProcess("engine", command, env=os.environ, folder=Path(folder))
        engine.start()
        try:
            with cluster(rabbitmq, redis, config) as made:
                yield made
        finally:
            engine.kill()


async def test_the_gap_of_a_killed_agent_is_idle_time_once(parts: Cluster) -> None:
    readings = [Reading() for _ in range(STREAMS)]
    async with httpx.AsyncClient(base_url=parts.url, timeout=120) as client:
        tasks = [asyncio.create_task(read(client, each, n)) for n, each in enumerate(readings)]
        await until(lambda: all(each.events and each.events[-1][1] >= SHOWN for each in readings), "text")
        agent = parts.agents[INSTANCE]
        agent.kill()
        agent.start()
        await asyncio.gather(*tasks)
        counted = await idle_of_gateway(client, parts)
    for each in readings:
        assert (each.finish, each.events[-1][1]) == ("length", TOKENS)
        tokens = [tokens for _, tokens in each.events]
        assert tokens == sorted(set(tokens)), "no token came twice"
        at = each.longest_gap
        gap_s = each.events[at][0] - each.events[at - 1][0]
        grown_s = each.idle_s[at] - each.idle_s[at - 1]
        assert gap_s > 2 * AGREE_S, "an agent does not start sooner"
        # The reader waits for all of the gap, but for the time that the tokens before it take to read, and
        # those before them if two events came close together.
        before_s = (each.events[at - 1][1] - each.events[at - 2][1]) / PACE
        assert gap_s - before_s - AGREE_S < grown_s < gap_s - before_s + 1e-6
        others = [after - before for n, (before, after) in enumerate(pairwise(each.idle_s)) if n != at - 1]
        assert max(others) < gap_s / 2, "it grows by the gap once"
    assert counted["count"] == STREAMS
    seen_s = sum(each.idle_s[-1] for each in readings)
    assert counted["sum"] == pytest.approx(seen_s, abs=AGREE_S * STREAMS)


async def read(client: httpx.AsyncClient, seen: Reading, n: int) -> None:
    """Read one stream to its end, and keep the reader's timeline as the gateway does."""
    body: dict[str, Any] = {
        "model": MODEL, "prompt": f"story {n}", "max_tokens": TOKENS, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "slo": {"ttft_ms": TTFT_MS, "tokens_per_s": PACE},
    }  # fmt: skip
    timeline = Timeline(Reader(ttft_s=TTFT_MS / 1000, tokens_per_s=PACE))
    begin_s, shown = time.monotonic(), 0
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if event["choices"] and event["choices"][0]["finish_reason"]:
                seen.finish = event["choices"][0]["finish_reason"]
            tokens, at_s = event["usage"]["completion_tokens"], time.monotonic()
            if tokens == shown:
                continue
            timeline.deliver(tokens - shown, at_s - begin_s)
            shown = tokens
            seen.events.append((at_s, tokens))
            seen.idle_s.append(timeline.late_s)


async def idle_of_gateway(client: httpx.AsyncClient, parts: Cluster) -> dict[str, float]:
    """Return sum and count of idle times, once the gateway has counted all streams."""
    found: dict[str, float] = {}

    async def is_counted() -> bool:
        text = (await client.get(f"{parts.admin_url}/metrics")).text
        for name in ("sum", "count"):
            try:
                found[name] = value(text, f"qlm_gateway_request_idle_seconds_{name}")
            except KeyError:
                return False
        return found["count"] >= STREAMS

    await until(is_counted, "the gateway has counted the streams")
    return found

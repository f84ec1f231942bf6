"""Open-loop load generator: requests leave on time, however slow the answers are."""

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass(slots=True)
class Sample:
    """Measurements of one run.

    Attributes:
        offered_rps: Requests sent per second.
        latencies_ms: Time to the full answer of each request that got one, from the moment it was due.
        failed: Requests without a good answer.
        elapsed_s: From the first request due to the last answer.
    """

    offered_rps: float
    latencies_ms: list[float] = field(default_factory=list)
    failed: int = 0
    elapsed_s: float = 0.0

    def quantile_ms(self, share: float) -> float:
        """Return a quantile of the latency; infinite without answers."""
        if not self.latencies_ms:
            return float("inf")
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def answered_rps(self) -> float:
        """Good answers per second over the whole run."""
        return len(self.latencies_ms) / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def mean_ms(self) -> float:
        """Mean latency."""
        return statistics.fmean(self.latencies_ms) if self.latencies_ms else float("inf")


def poisson_arrivals(rate_rps: float, seconds: float, seed: int) -> list[float]:
    """Draw arrival times in seconds; equal seeds give equal times in both arms."""
    rng, at_s, times = random.Random(seed), 0.0, []
    while (at_s := at_s + rng.expovariate(rate_rps)) < seconds:
        times.append(at_s)
    return times


async def open_loop(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], arrivals: Sequence[float]
) -> Sample:
    """Send one request per arrival time and wait for all answers."""
    sample = Sample(offered_rps=len(arrivals) / max(arrivals[-1], 1e-9))
    started_s = time.perf_counter()

    async def one(due_s: float) -> None:
        try:
            async with session.post(url, json=body) as answer:
                await answer.read()
                good = answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            good = False
        if good:
            sample.latencies_ms.append((time.perf_counter() - started_s - due_s) * 1000)
        else:
            sample.failed += 1

    tasks = []
    for due_s in arrivals:
        wait_s = due_s - (time.perf_counter() - started_s)
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        tasks.append(asyncio.create_task(one(due_s)))
    await asyncio.gather(*tasks)
    sample.elapsed_s = time.perf_counter() - started_s
    return sample


async def closed_loop(
    session: aiohttp.ClientSession,
    url: str,
    body: dict[str, Any],
    *,
    concurrency: int,
    seconds: float,
    headers: dict[str, str],
    good_status: int,
) -> Sample:
    """Keep `concurrency` requests in progress for a time."""
    sample = Sample(offered_rps=float("inf"))
    started_s = time.perf_counter()

    async def worker() -> None:
        while (sent_s := time.perf_counter()) - started_s < seconds:
            async with session.post(url, json=body, headers=headers) as answer:
                await answer.read()
                if answer.status == good_status:
                    sample.latencies_ms.append((time.perf_counter() - sent_s) * 1000)
                else:
                    sample.failed += 1

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    sample.elapsed_s = time.perf_counter() - started_s
    return sample


def client(timeout_s: float | None = 60.0) -> aiohttp.ClientSession:
    """Open a session with enough connections that requests never wait in the client."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=timeout_s))

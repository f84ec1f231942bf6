"""One round: the cluster under load, each fault in turn, and how long each took to be got over."""

import asyncio
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.chaos import faults
from benchmarks.chaos.clients import Clients
from benchmarks.chaos.rig import PLACES, Rig, running_rig
from benchmarks.chaos.traffic import Traffic, silence_s, until
from benchmarks.chaos.verdict import Verdict, judge

FLUSH: Final = "flush"
FAULTS: Final = (*faults.KILLS, FLUSH)
WAITING: Final = 500
"""Requests that wait when Redis is emptied."""

OVER_S: Final = 120.0
"""Longest time from a fault until everything asked before it must have ended."""

_BEFORE_S: Final = (2.0, 4.0)
"""Load before a fault, drawn between these."""

_BURST_TOKENS: Final = (30, 60)
"""Answers are short there: it is their number that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How one fault was got over; seconds from the kill.

    Attributes:
        fault: Which.
        hit: What exactly.
        open: Requests under way at the kill.
        new_request_s: Until the first answer of a request that was sent after it; None: none in time.
        all_ended_s: Until all requests sent before it had ended; None: not in time.
        silence_s: Longest pause between two tokens of a stream.
    """

    fault: str
    hit: str
    open: int
    new_request_s: float | None
    all_ended_s: float | None
    silence_s: float


@dataclass(slots=True, kw_only=True)
class Round:
    """What a round showed."""

    recoveries: list[Recovery] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)


async def play(folder: Path, rng: random.Random, wanted: tuple[str, ...]) -> Round:
    """Play the faults in this order on a cluster of their own."""
    made = Round()
    with running_rig(folder) as rig:
        clients = Clients(rig.urls, random.Random(rng.getrandbits(64)))
        traffic = Traffic(clients, random.Random(rng.getrandbits(64)))
        arriving = asyncio.create_task(traffic.arrive())
        ends: dict[str, int] = {}
        flushed_s: list[float] = []
        try:
            for name in wanted:
                await asyncio.sleep(rng.uniform(*_BEFORE_S))
                if name == FLUSH:
                    await _many_wait(rig, traffic)
                    await _count_ends(rig, ends)
                    flushed_s.append(time.monotonic())
                recovery = await _strike(rig, clients, traffic, name, rng)
                made.recoveries.append(recovery)
                print(_line(recovery), flush=True)
                await _count_ends(rig, ends)
            arriving.cancel()
            await until(lambda: all(one.over for one in traffic.asked), OVER_S)
            await _count_ends(rig, ends)
        finally:
            arriving.cancel()
            await traffic.give_up()
            await clients.close()
        made.verdict = judge(traffic.asked, ends, flushed_s)
    return made


async def _strike(rig: Rig, clients: Clients, traffic: Traffic, name: str, rng: random.Random) -> Recovery:
    """Let a fault happen, and wait until it is got over and everything runs again."""
    before = [one for one in traffic.asked if not one.over]
    since_s = time.monotonic()
    hitting = asyncio.create_task(_hit(rig, clients, name, rng))
    probing = asyncio.create_task(traffic.probe(since_s, OVER_S))
    ended = await until(lambda: all(one.over or one.id in clients.gone for one in before), OVER_S)
    hit, new_request_s = await asyncio.gather(hitting, probing)
    before = [one for one in before if one.id not in clients.gone]
    await asyncio.to_thread(rig.wait_whole)
    over_s = max((one.over_s or 0.0 for one in before), default=since_s)
    return Recovery(
        fault=name,
        hit=hit,
        open=len(before),
        new_request_s=new_request_s,
        all_ended_s=max(0.0, over_s - since_s) if ended else None,
        silence_s=silence_s(before, since_s),
    )


async def _hit(rig: Rig, clients: Clients, name: str, rng: random.Random) -> str:
    if name != FLUSH:
        return await asyncio.to_thread(faults.KILLS[name], rig, rng)
    clients.gone |= await asyncio.to_thread(rig.empty_redis)
    return "redis emptied"


async def _many_wait(rig: Rig, traffic: Traffic) -> None:
    """Send asynchronous requests until enough of them wait."""
    async with httpx.AsyncClient(base_url=rig.urls[0], timeout=30) as client:
        wanted = WAITING + 3 * PLACES
        while wanted > 0:
            low, high = _BURST_TOKENS
            burst = [traffic.ask("async", low + n % (high - low)) for n in range(wanted)]
            await until(lambda burst=burst: all(one.accepted_s for one in burst), OVER_S)  # type: ignore[misc]
            listed = (await client.get("/admin/v1/queues")).raise_for_status().json()["classes"]
            wanted = WAITING - sum(each["queued"] for each in listed)
            wanted += 2 * PLACES if wanted > 0 else 0


async def _count_ends(rig: Rig, ends: dict[str, int]) -> None:
    """Count the ends in the story of each request that the store knows."""
    listed = await _listed(rig)
    for each in listed:
        times = sum(event["what"] == "ended" for event in each["events"])
        ends[each["id"]] = max(ends.get(each["id"], 0), times)


async def _listed(rig: Rig) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(timeout=60) as client:
        for url in rig.urls:
            answer = await client.get(f"{url}/admin/v1/requests", params={"limit": 10_000})
            found: list[dict[str, Any]] = answer.raise_for_status().json()["requests"]
            return found
    raise AssertionError("no gateways")


def _line(recovery: Recovery) -> str:
    def shown(seconds: float | None) -> str:
        return "never" if seconds is None else f"{seconds:6.2f} s"

    return (
        f"  {recovery.fault:<10} {recovery.hit:<22} {recovery.open:4} open  new request "
        f"{shown(recovery.new_request_s)}  all ended {shown(recovery.all_ended_s)}  "
        f"silence {shown(recovery.silence_s)}"
    )

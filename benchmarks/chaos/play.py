"""One round: a cluster under load, each fault in turn, and the time of each recovery."""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.chaos.client_request import ClientRequest
from benchmarks.chaos.clients import Clients
from benchmarks.chaos.faults.fault import Hit, Kind
from benchmarks.chaos.recovery import Recovery
from benchmarks.chaos.rig import PLACES, Rig, running_rig
from benchmarks.chaos.traffic import Traffic, count_ends, silence_s, until
from benchmarks.chaos.verdict import Verdict, judge

WAITING: Final = 500
"""Number of waiting requests before a fault that strikes a crowd."""

OVER_S: Final = 120.0
"""Time from a fault within which all earlier requests must end."""

SLOW_S: Final = 6.0
"""Latency of a new request above which its event history is printed."""

_BEFORE_S: Final = (2.0, 4.0)
"""Shortest and longest time of load before a fault."""

_BURST_TOKENS: Final = (30, 60)
"""Shortest and longest answer of the burst."""


@dataclass(slots=True, kw_only=True)
class Round:
    """Result of a round.

    Attributes:
        unkept: Promises of the product that were not kept during a fault.
        skipped: Kinds for which no time was left.
    """

    recoveries: list[Recovery] = field(default_factory=list)
    unkept: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)


async def play(folder: Path, rng: random.Random, wanted: Sequence[Kind], limit_s: float) -> Round:
    """Run the faults in this order on a new cluster; none begins after `limit_s`."""
    made, over_s = Round(), time.monotonic() + limit_s
    relayed = any(kind.group == "partition" for kind in wanted)
    with running_rig(folder, _forgiving, relayed=relayed) as rig:
        clients = Clients(rig.urls, random.Random(rng.getrandbits(64)), gone=rig.gone)
        traffic = Traffic(clients, random.Random(rng.getrandbits(64)))
        arriving = asyncio.create_task(traffic.arrive())
        ends: dict[str, int] = {}
        deletions_s: list[tuple[float, float]] = []
        try:
            for kind in wanted:
                if time.monotonic() > over_s:
                    made.skipped.append(kind.name)
                    continue
                await asyncio.sleep(rng.uniform(*_BEFORE_S))
                if kind.crowd:
                    await _many_wait(rig, traffic)
                if kind.deletes:
                    await count_ends(rig.admin_url, ends)
                began_s = time.monotonic()
                recovery, unkept = await _strike(rig, clients, traffic, kind, rng)
                if kind.deletes:
                    deletions_s.append((began_s, time.monotonic()))
                made.recoveries.append(recovery)
                made.unkept += [unkept] if unkept else []
                print(recovery.line(), flush=True)
                await count_ends(rig.admin_url, ends)
            arriving.cancel()
            await until(lambda: all(one.over for one in traffic.requests), OVER_S)
            await count_ends(rig.admin_url, ends)
        finally:
            arriving.cancel()
            await traffic.give_up()
            await clients.close()
        made.verdict = judge(traffic.requests, ends, deletions_s, made.unkept)
    return made


def _forgiving(kind: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Let engines hang several times in a round before they are out of service."""
    return {**config, "watchdog": {"window_s": 30.0}}


async def _strike(
    rig: Rig, clients: Clients, traffic: Traffic, kind: Kind, rng: random.Random
) -> tuple[Recovery, str]:
    """Cause a fault, and wait for the recovery of all processes and requests; return an unkept promise."""
    before = [one for one in traffic.requests if not one.over]
    since_s = time.monotonic()
    hitting = asyncio.create_task(_hit(rig, kind, rng))
    probing = asyncio.create_task(traffic.probe(since_s, OVER_S))
    ended = await until(lambda: all(one.over or one.id in clients.gone for one in before), OVER_S)
    (hit, repaired_s), probes = await asyncio.gather(hitting, probing)
    await until(lambda: all(one.over for one in probes), OVER_S)
    answered_s = [one.over_s - since_s for one in probes if one.over_s is not None and one.answered]
    await _print_slow(rig, probes, since_s)
    before = [one for one in before if one.id not in clients.gone]
    await asyncio.to_thread(rig.wait_whole)
    over_s = max((one.over_s or 0.0 for one in before), default=since_s)
    recovery = Recovery(
        fault=kind.name,
        hit=hit.target,
        repaired_s=repaired_s - since_s,
        open=len(before),
        new_request_s=min(answered_s, default=None),
        at_once_s=probes[0].over_s - since_s if probes[0].over_s and probes[0].answered else None,
        all_ended_s=max(0.0, over_s - since_s) if ended else None,
        silence_s=silence_s(before, since_s),
    )
    return recovery, hit.unkept


async def _hit(rig: Rig, kind: Kind, rng: random.Random) -> tuple[Hit, float]:
    """Cause and repair a fault; return it and the time of the repair."""
    hit = await asyncio.to_thread(kind.strike, rig, rng)
    return hit, time.monotonic()


def _all_accepted(burst: Sequence[ClientRequest]) -> bool:
    return all(one.accepted_s for one in burst)


async def _many_wait(rig: Rig, traffic: Traffic) -> None:
    """Send asynchronous requests until enough of them wait."""
    async with httpx.AsyncClient(base_url=rig.urls[0], timeout=30) as client:
        wanted = WAITING + 3 * PLACES
        while wanted > 0:
            low, high = _BURST_TOKENS
            burst = [traffic.ask("async", low + n % (high - low)) for n in range(wanted)]
            await until(partial(_all_accepted, burst), OVER_S)
            listed = (
                (await client.get(f"{rig.admin_url}/admin/v1/queues")).raise_for_status().json()["classes"]
            )
            wanted = WAITING - sum(each["queued"] for each in listed)
            wanted += 2 * PLACES if wanted > 0 else 0


async def _print_slow(rig: Rig, probes: Sequence[ClientRequest], since_s: float) -> None:
    """Print the event history of the slowest new request if that took long."""
    slowest = max(probes, key=lambda one: one.over_s or time.monotonic())
    if (slowest.over_s or time.monotonic()) - slowest.sent_s < SLOW_S or not slowest.id:
        return
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.get(f"{rig.admin_url}/admin/v1/requests/{slowest.id}")
    since_epoch_s = time.time() - time.monotonic() + since_s
    events = (
        f"{each['at_s'] - since_epoch_s:.2f} {each['what']} {each['instance'] or ''} {each['why']}"
        for each in answer.json().get("events", ())
    )
    sent_s = slowest.sent_s - since_s
    print(
        f"  sent {sent_s:.2f} s after the fault, refused {slowest.refused} times: {'; '.join(events)}",
        flush=True,
    )

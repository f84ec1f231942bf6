"""Rolling updates under load: of the configuration, or from another version of QLM and back."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.chaos.client_request import ClientRequest
from benchmarks.chaos.clients import Clients
from benchmarks.chaos.play import OVER_S
from benchmarks.chaos.rig import MODEL, Rig, running_rig
from benchmarks.chaos.traffic import Traffic, count_ends, silence_s, until
from benchmarks.chaos.verdict import Verdict, judge
from benchmarks.upgrade.release import Release
from benchmarks.upgrade.rolling import MORE, Restart, Update, configured, restart
from support.qlm_process import QLM, QlmProcess

SAME: Final = Update(name="same")
FORWARD: Final = Update(name="forward", more=True)
BACK: Final = Update(name="back", back=True)
ROLLS: Final = {each.name: each for each in (SAME, FORWARD, BACK)}
"""Updates of the configuration."""

BACKLOG: Final = 60
"""Asynchronous requests sent before each stop where requests must wait."""

BACKLOG_TOKENS: Final = 160

PATIENT: Final = {"deadline_ms": 86_400_000.0, "p_met_min": 0.01}
"""Objective of half of them; their messages have extensions."""

PINNED: Final = 0.2
"""Share of requests that no other agent can resume."""

_BETWEEN_S: Final = (1.0, 3.0)
"""Shortest and longest time of load between two restarts."""

_LOAD_S: Final = 6.0
"""Time of load after an update, with requests for its new model."""


@dataclass(slots=True, kw_only=True)
class Roll:
    """One rolling update.

    Attributes:
        restarts: Restarts of all processes, in order.
        open: Unfinished requests at any of its stops.
        breaks: Refused or broken connections.
        cuts: Connections that broke during an answer.
        refused: Refusals with a retry delay.
        silence_s: Longest pause between two tokens of a stream.
    """

    name: str
    restarts: list[Restart] = field(default_factory=list)
    open: int = 0
    breaks: int = 0
    cuts: int = 0
    refused: int = 0
    silence_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Upgrade:
    """Results of all rolling updates of a run.

    Attributes:
        of_more: Accepted requests for the model that only the new configuration has.
        verdict: Account of every request.
    """

    rolls: list[Roll] = field(default_factory=list)
    of_more: int = 0
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def clean(self) -> bool:
        """True if no request was lost, answered twice or broken, and all processes exited with code 0."""
        ended_well = all(each.exit_code == 0 for roll in self.rolls for each in roll.restarts)
        return self.verdict.clean and not self.verdict.refused and ended_well


async def play(
    folder: Path,
    rng: random.Random,
    rolls: Sequence[Update],
    *,
    before: Path = QLM,
    left_out: Sequence[str] = (),
) -> Upgrade:
    """Run rolling updates on a new cluster.

    Args:
        folder: Folder for logs and data.
        rng: Draws load and pauses.
        rolls: Updates, in order.
        before: The `qlm` of the cluster before the first one.
        left_out: Names of processes that are not restarted.
    """
    made = Upgrade()
    with running_rig(folder, partial(configured, more=False), before) as rig:
        clients = Clients(rig.urls, random.Random(rng.getrandbits(64)))
        traffic = Traffic(clients, random.Random(rng.getrandbits(64)))
        traffic.pinned = PINNED
        arriving = asyncio.create_task(traffic.arrive())
        ends: dict[str, int] = {}
        try:
            for update in rolls:
                made.rolls.append(await _roll(rig, traffic, update, rng, left_out))
                await count_ends(rig.admin_url, ends)
            arriving.cancel()
            await until(lambda: all(one.over for one in traffic.requests), OVER_S)
            await count_ends(rig.admin_url, ends)
        finally:
            arriving.cancel()
            await traffic.give_up()
            await clients.close()
        made.verdict = judge(traffic.requests, ends, ())
        made.of_more = sum(one.model == MORE and one.accepted_s is not None for one in traffic.requests)
    return made


def across(release: Release) -> tuple[Update, Update]:
    """Return the updates from another version to this one, and back."""
    return (
        Update(name=f"from {release.name}"),
        Update(name=f"back to {release.name}", back=True, program=release.qlm),
    )


async def _roll(
    rig: Rig, traffic: Traffic, update: Update, rng: random.Random, left_out: Sequence[str]
) -> Roll:
    """Replace every process in turn; clients use the additional model only while all gateways have it."""
    roll = Roll(name=update.name)
    if update.back and len(traffic.models) > 1:
        traffic.models = (MODEL,)
        await until(lambda: all(one.over for one in traffic.requests if one.model == MORE), OVER_S)
    since_s = time.monotonic()
    before = _troubles(traffic.requests)
    met: set[str] = set()
    for process in (each for each in _in_order(rig, update) if each.name not in left_out):
        await asyncio.sleep(rng.uniform(*_BETWEEN_S))
        await _load(traffic)
        met |= {one.key for one in traffic.requests if not one.over}
        done = await asyncio.to_thread(restart, rig, process, update)
        roll.restarts.append(done)
        print(done.line(), flush=True)
    await asyncio.to_thread(rig.wait_whole)
    if update.more:
        traffic.models = (MODEL, MORE)
    await asyncio.sleep(_LOAD_S)
    roll.open = len(met)
    met_with = _troubles(traffic.requests) - before
    roll.breaks, roll.cuts, roll.refused = met_with["breaks"], met_with["cuts"], met_with["refused"]
    roll.silence_s = round(silence_s(traffic.requests, since_s), 2)
    return roll


async def _load(traffic: Traffic) -> None:
    """Send asynchronous requests at once, so that some wait in the queue."""
    sent = [traffic.ask("async", BACKLOG_TOKENS, PATIENT if n % 2 else None) for n in range(BACKLOG)]
    await until(lambda: all(one.accepted_s is not None for one in sent), OVER_S)


def _troubles(requests: Sequence[ClientRequest]) -> Counter[str]:
    """Sum the counts of broken connections and refusals over all requests."""
    return Counter(
        {name: sum(getattr(one, name) for one in requests) for name in ("breaks", "cuts", "refused")}
    )


def _in_order(rig: Rig, update: Update) -> list[QlmProcess]:
    """Return the processes in order: agents, controllers, gateways; reversed for a way back."""
    parts = [*rig.parts.agents.values(), *rig.controllers, *rig.parts.gateways]
    return parts[::-1] if update.back else parts

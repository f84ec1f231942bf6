"""Open-loop load: requests of all kinds arrive when they are due, whatever became of those before."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from typing import Any, Final

from benchmarks.chaos.asked import KINDS, Asked, Kind
from benchmarks.chaos.clients import Clients
from benchmarks.chaos.rig import MODEL

RATE_RPS: Final = 12.0
TOKENS: Final = (40, 240)
"""Least and most tokens of an answer."""

SHARES: Final = (5, 2, 3)
"""Of streams, plain and asynchronous requests."""

URGENT: Final = {"ttft_ms": 500.0}
PROBE_S: Final = 0.25
PROBE_TOKENS: Final = 4


class Traffic:
    """The requests of a round.

    Attributes:
        asked: All of them, in the order of their first sending.
        models: Arriving requests ask one of these, drawn.
        pinned: Share of those that cannot be resumed exactly.
    """

    def __init__(self, clients: Clients, rng: random.Random) -> None:
        self.asked: list[Asked] = []
        self.models: Sequence[str] = (MODEL,)
        self.pinned = 0.0
        self._clients = clients
        self._rng = rng
        self._names = (f"request {n} {rng.getrandbits(32):08x}" for n in count())
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, kind: Kind, tokens: int, slo: dict[str, float] | None = None, **more: Any) -> Asked:
        """Send one request now, in the background; `more` are further fields of `Asked`."""
        sent_s = time.monotonic()
        one = Asked(key=next(self._names), kind=kind, tokens=tokens, slo=slo, sent_s=sent_s, **more)
        self.asked.append(one)
        task = asyncio.create_task(self._clients.carry(one))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return one

    async def arrive(self) -> None:
        """Let requests arrive (Poisson) until cancelled."""
        while True:
            await asyncio.sleep(self._rng.expovariate(RATE_RPS))
            (kind,) = self._rng.choices(KINDS, SHARES)
            tokens = self._rng.randint(*TOKENS)
            # One model and none pinned draw nothing more: a seed of before plays as before.
            model = self._rng.choice(self.models) if len(self.models) > 1 else self.models[0]
            pinned = self.pinned > 0 and self._rng.random() < self.pinned
            self.ask(kind, tokens, model=model, pinned=pinned)

    async def probe(self, since_s: float, limit_s: float) -> list[Asked]:
        """Send a short urgent request at once and now and then until one of them is answered; return all."""
        sent: list[Asked] = []
        while time.monotonic() < since_s + limit_s:
            if not sent or time.monotonic() - sent[-1].sent_s >= PROBE_S:
                sent.append(self.ask("plain", PROBE_TOKENS, URGENT))
            if any(one.answered for one in sent):
                break
            await asyncio.sleep(0.01)
        return sent

    async def give_up(self) -> None:
        """Let go of all requests that are still under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def silence_s(asked: Sequence[Asked], since_s: float) -> float:
    """Longest silence of a stream between two tokens of it that ended after a moment, seconds."""
    gaps = (after - before for one in asked for before, after in pairwise(one.token_s) if after > since_s)
    return max(gaps, default=0.0)


async def until(holds: Callable[[], bool], limit_s: float) -> bool:
    """Wait until something holds; False if it does not within the limit."""
    over_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > over_s:
            return False
        await asyncio.sleep(0.02)
    return True

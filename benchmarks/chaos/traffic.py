"""Open-loop load: requests of all kinds arrive on time, whatever happens to earlier ones."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from typing import Any, Final

import httpx

from benchmarks.chaos.client_request import KINDS, ClientRequest, Kind
from benchmarks.chaos.clients import Clients
from benchmarks.chaos.rig import MODEL

RATE_RPS: Final = 12.0
TOKENS: Final = (40, 240)
"""Shortest and longest answer."""

SHARES: Final = (5, 2, 3)
"""Weights of streamed, plain and asynchronous requests."""

URGENT: Final = {"ttft_ms": 500.0}
PROBE_S: Final = 0.25
PROBE_TOKENS: Final = 4

COUNT_S: Final = 60.0
"""Time in which the store must list all requests."""


class Traffic:
    """Requests of a round.

    Attributes:
        requests: All requests in order of their first try.
        models: Models from which an arriving request draws.
        pinned: Share of requests that cannot be resumed exactly.
    """

    def __init__(self, clients: Clients, rng: random.Random) -> None:
        self.requests: list[ClientRequest] = []
        self.models: Sequence[str] = (MODEL,)
        self.pinned = 0.0
        self._clients = clients
        self._rng = rng
        self._names = (f"request {n} {rng.getrandbits(32):08x}" for n in count())
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, kind: Kind, tokens: int, slo: dict[str, float] | None = None, **more: Any) -> ClientRequest:
        """Send one request now, in the background; `more` are further fields of `ClientRequest`."""
        sent_s = time.monotonic()
        one = ClientRequest(key=next(self._names), kind=kind, tokens=tokens, slo=slo, sent_s=sent_s, **more)
        self.requests.append(one)
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
            # With one model and none pinned nothing is drawn, so that old seeds give the same requests.
            model = self._rng.choice(self.models) if len(self.models) > 1 else self.models[0]
            pinned = self.pinned > 0 and self._rng.random() < self.pinned
            self.ask(kind, tokens, model=model, pinned=pinned)

    async def probe(self, since_s: float, limit_s: float) -> list[ClientRequest]:
        """Send short urgent requests, the first at once, until one is answered; return all."""
        sent: list[ClientRequest] = []
        while time.monotonic() < since_s + limit_s:
            if not sent or time.monotonic() - sent[-1].sent_s >= PROBE_S:
                sent.append(self.ask("plain", PROBE_TOKENS, URGENT))
            if any(one.answered for one in sent):
                break
            await asyncio.sleep(0.01)
        return sent

    async def give_up(self) -> None:
        """Cancel all unfinished requests."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def silence_s(requests: Sequence[ClientRequest], since_s: float) -> float:
    """Return the longest pause between two tokens of a stream that ended after `since_s`, seconds."""
    gaps = (after - before for one in requests for before, after in pairwise(one.token_s) if after > since_s)
    return max(gaps, default=0.0)


async def until(holds: Callable[[], bool], limit_s: float) -> bool:
    """Wait for a condition; return False if it fails within the limit."""
    over_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > over_s:
            return False
        await asyncio.sleep(0.02)
    return True


async def count_ends(admin_url: str, ends: dict[str, int]) -> None:
    """Count the ends in the event history of each request that the store knows.

    Raises:
        RuntimeError: The gateway refuses to list them; its message has the answer.
    """
    over_s = time.monotonic() + COUNT_S
    async with httpx.AsyncClient(base_url=admin_url, timeout=60) as client:
        # The list is long: on a busy machine the store may not return it in time at the first try.
        while (answer := await client.get("/admin/v1/requests", params={"limit": 10_000})).status_code != 200:
            if time.monotonic() > over_s:
                raise RuntimeError(f"requests are not listed: {answer.status_code} {answer.text[:300]}")
            await asyncio.sleep(1.0)
    for each in answer.json()["requests"]:
        times = sum(event["what"] == "ended" for event in each["events"])
        ends[each["id"]] = max(ends.get(each["id"], 0), times)

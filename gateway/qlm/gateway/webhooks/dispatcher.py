"""Sends events of the ends that the outbox keeps to their endpoints."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Final

from qlm.domain.ports.outbox import EndEvent
from qlm.domain.shell.tasks import end_tasks
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.webhooks.backoff import SPARE_MAX_S, busy_max_s, pause_s, spare_s
from qlm.gateway.webhooks.endpoints import Endpoint, Webhooks
from qlm.gateway.webhooks.events import event_id, event_type
from qlm.gateway.webhooks.seen import as_seen
from qlm.gateway.webhooks.sender import Result, Sender

_log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
"""Longest time between two looks for events that are due; drawn by chance: no gateway is always first."""

WATCH_S: Final = 10.0
"""Time between two counts of the events, at a gateway without endpoints."""

CLAIM_S: Final = 30.0
"""Time beyond that of an attempt after which another gateway takes an event that was not settled."""

UNKNOWN_NS: Final = 5_000_000_000
"""Pause of an event that no endpoint here wants: another gateway may know one, as in a restart."""


class Dispatcher:
    """Sends the events that one gateway claims, with a bounded number under way."""

    def __init__(
        self,
        gateway: Gateway,
        webhooks: Webhooks,
        sender: Sender,
        chance: Callable[[], float] = random.random,
        look_s: float = LOOK_S,
    ) -> None:
        """Send nothing yet.

        Args:
            gateway: The gateway.
            webhooks: The endpoints.
            sender: Makes attempts.
            chance: Returns a number from 0 to 1 by chance.
            look_s: Longest time between two looks for events that are due.
        """
        self._gateway = gateway
        self._webhooks = webhooks
        self._sender = sender
        self._chance = chance
        self._look_s = look_s
        self._metrics = gateway.metrics.webhooks
        self._under_way: set[asyncio.Task[None]] = set()
        self._waiting = 0

    async def run(self) -> None:
        """Send events until cancelled; what is then under way is sent again later."""
        try:
            while True:
                try:
                    await self._look()
                except Exception as error:
                    self._gateway.faults.note(_log, error, "cannot look for events of webhooks")
                await self._wait()
        finally:
            await end_tasks(self._under_way)

    async def _look(self) -> None:
        free = self._webhooks.limits.concurrent_max - len(self._under_way)
        if free > 0:
            for event in await self._gateway.store.claim_ends(free, self._claim_s):
                task = asyncio.create_task(self._send(event))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
        state = await self._gateway.store.outbox_state()
        self._waiting = state.waiting
        self._metrics.outbox(state)

    async def _wait(self) -> None:
        """Wait until there may be more to send."""
        if len(self._under_way) < self._webhooks.limits.concurrent_max:
            await asyncio.sleep(self._look_s * (0.5 + self._chance() / 2))
        else:
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)

    async def _send(self, event: EndEvent) -> None:
        try:
            if self._gateway.clock.now_ns() >= self._until_ns(event):
                await self._drop(event)
            elif (seen := await self._as_first_seen(event)) is not None:
                await self._settle(seen, await self._attempts(seen))
        except Exception as error:
            self._gateway.faults.note(_log, error, "event of %s is sent again later", event.subject)

    async def _as_first_seen(self, event: EndEvent) -> EndEvent | None:
        """Return an event that says the same in each attempt; None if it is another gateway's by now.

        What it says is stored before the first attempt: the answer may be gone at the next one.
        """
        if event.done or event.failures:
            return event
        seen = await as_seen(self._gateway, event)
        if seen == event or await self._gateway.store.settle_end(seen, self._after_ns(self._claim_s)):
            return seen
        return None

    async def _attempts(self, event: EndEvent) -> "_Left":
        """Try each endpoint that wants the event and has not got it yet."""
        left = _Left()
        wanting = self._wanting(event)
        if not wanting:
            left.again_ns.append(self._gateway.clock.now_ns() + UNKNOWN_NS)
        endpoints = [each for each in wanting if each.name not in event.done]
        attempts = await asyncio.gather(*(self._sender.send(each, event) for each in endpoints))
        for endpoint, attempt in zip(endpoints, attempts, strict=True):
            if attempt.result is Result.SPARED:
                left.spared_until_ns.append(attempt.spared_until_ns)
                continue
            self._metrics.attempted(endpoint.name, attempt.result.value)
            if attempt.result is Result.FAILED:
                left.failed.append(endpoint)
                _log.info("webhook %s did not take %s: %s", endpoint.name, event_id(event), attempt.why)
            else:
                left.done.append(endpoint.name)
            if attempt.result is Result.GONE:
                self._give_up(event, [endpoint], attempt.why)
        return left

    async def _settle(self, event: EndEvent, left: "_Left") -> None:
        given_up: Sequence[Endpoint] = ()
        if left.spared_until_ns:
            longest_s = busy_max_s(self._waiting) if left.is_busy else SPARE_MAX_S
            again_ns = self._after_ns(spare_s(event.attempts, longest_s, self._chance()))
            left.again_ns.append(max(again_ns, min(left.spared_until_ns)))
        if left.failed:
            event = replace(event, failures=event.failures + 1)
            again_ns = self._after_ns(pause_s(event.failures, self._webhooks.limits, self._chance()))
            if again_ns < self._until_ns(event):
                left.again_ns.append(again_ns)
            else:
                given_up = left.failed
        done = (*event.done, *left.done, *(each.name for each in given_up))
        settled = await self._gateway.store.settle_end(
            replace(event, done=done), min(left.again_ns, default=None)
        )
        if settled:
            self._give_up(event, given_up, self._over)

    async def _drop(self, event: EndEvent) -> None:
        """Give up an event whose time is over."""
        if not await self._gateway.store.settle_end(event, None):
            return
        wanting = self._wanting(event)
        self._give_up(event, [each for each in wanting if each.name not in event.done], self._over)
        if not wanting:
            text = "%s (%s of %s) is dropped: no endpoint here wants it, and %s"
            _log.warning(text, event_id(event), event_type(event), event.subject, self._over)

    def _wanting(self, event: EndEvent) -> Sequence[Endpoint]:
        return self._webhooks.receivers((event_type(event),), event.tenant)

    @property
    def _claim_s(self) -> float:
        return self._webhooks.limits.timeout_s + CLAIM_S

    def _after_ns(self, pause_s: float) -> int:
        return self._gateway.clock.now_ns() + round(pause_s * 1e9)

    def _until_ns(self, event: EndEvent) -> int:
        return event.at_ns + round(self._webhooks.limits.retry_for_s * 1e9)

    @property
    def _over(self) -> str:
        return f"its time of {self._webhooks.limits.retry_for_s:g} s is over"

    def _give_up(self, event: EndEvent, endpoints: Sequence[Endpoint], why: str) -> None:
        for endpoint in endpoints:
            self._metrics.attempted(endpoint.name, "given_up")
            text = "webhook %s never took %s (%s of %s): %s"
            _log.warning(text, endpoint.name, event_id(event), event_type(event), event.subject, why)


class _Left:
    """What attempts have left of an event.

    Attributes:
        done: Names of endpoints that need no further attempt.
        failed: Endpoints that do.
        spared_until_ns: Times until which endpoints are spared at least, nanoseconds since the epoch; 0 for
            one that is only busy.
        again_ns: Times at which the event may be due again.
    """

    def __init__(self) -> None:
        self.done: list[str] = []
        self.failed: list[Endpoint] = []
        self.spared_until_ns: list[int] = []
        self.again_ns: list[int] = []

    @property
    def is_busy(self) -> bool:
        """True if some endpoint is spared only because enough attempts are under way."""
        return 0 in self.spared_until_ns


async def send_webhooks(gateway: Gateway) -> None:
    """Send events until cancelled; if this gateway knows no endpoints, show operators how many wait."""
    if gateway.webhooks is None:
        await _watch(gateway)
        return
    sender = Sender(gateway.webhooks, gateway.clock)
    try:
        await Dispatcher(gateway, gateway.webhooks, sender).run()
    finally:
        await sender.close()


async def _watch(gateway: Gateway) -> None:
    while True:
        try:
            gateway.metrics.webhooks.outbox(await gateway.store.outbox_state())
        except Exception as error:
            gateway.faults.note(_log, error, "cannot count the events of webhooks")
        await asyncio.sleep(WATCH_S)


@contextlib.asynccontextmanager
async def webhooks_sent(gateway: Gateway) -> AsyncIterator[None]:
    """Send events while inside, or show how many wait."""
    task = asyncio.create_task(send_webhooks(gateway))
    try:
        yield
    finally:
        await end_tasks([task])

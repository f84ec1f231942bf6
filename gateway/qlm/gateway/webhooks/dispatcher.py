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
from qlm.gateway.webhooks.backoff import pause_s
from qlm.gateway.webhooks.endpoints import Endpoint, Webhooks
from qlm.gateway.webhooks.events import event_id, event_type
from qlm.gateway.webhooks.sender import Result, Sender

_log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
"""Time between two looks for events that are due."""

CLAIM_S: Final = 30.0
"""Time beyond that of an attempt after which another gateway takes an event that was not settled."""


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
            look_s: Time between two looks for events that are due.
        """
        self._gateway = gateway
        self._webhooks = webhooks
        self._sender = sender
        self._chance = chance
        self._look_s = look_s
        self._metrics = gateway.metrics.webhooks
        self._under_way: set[asyncio.Task[None]] = set()

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
            claim_s = self._webhooks.limits.timeout_s + CLAIM_S
            for event in await self._gateway.store.claim_ends(free, claim_s):
                task = asyncio.create_task(self._send(event))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
        self._metrics.outbox(await self._gateway.store.outbox_state())

    async def _wait(self) -> None:
        """Wait until there may be more to send."""
        if len(self._under_way) < self._webhooks.limits.concurrent_max:
            await asyncio.sleep(self._look_s)
        else:
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)

    async def _send(self, event: EndEvent) -> None:
        try:
            left = await self._attempts(event)
            await self._settle(replace(event, done=(*event.done, *left.done)), left.failed)
        except Exception as error:
            self._gateway.faults.note(_log, error, "event of %s is sent again later", event.subject)

    async def _attempts(self, event: EndEvent) -> "_Left":
        """Try each endpoint that wants the event and has not got it yet."""
        wanting = self._webhooks.receivers((event_type(event),), event.tenant)
        endpoints = [each for each in wanting if each.name not in event.done]
        attempts = await asyncio.gather(*(self._sender.send(each, event) for each in endpoints))
        left = _Left()
        for endpoint, attempt in zip(endpoints, attempts, strict=True):
            self._metrics.attempted(endpoint.name, attempt.result.value)
            if attempt.result is Result.FAILED:
                left.failed.append(endpoint)
                _log.info("webhook %s did not take %s: %s", endpoint.name, event_id(event), attempt.why)
            else:
                left.done.append(endpoint.name)
            if attempt.result is Result.GONE:
                self._give_up(event, [endpoint], attempt.why)
        return left

    async def _settle(self, event: EndEvent, failed: Sequence[Endpoint]) -> None:
        limits, now_ns = self._webhooks.limits, self._gateway.clock.now_ns()
        again_ns = now_ns + round(pause_s(event.attempts, limits, self._chance()) * 1e9)
        over = again_ns >= event.at_ns + round(limits.retry_for_s * 1e9)
        settled = await self._gateway.store.settle_end(event, None if over or not failed else again_ns)
        if settled and failed and over:
            self._give_up(event, failed, f"its time of {limits.retry_for_s:g} s is over")

    def _give_up(self, event: EndEvent, endpoints: Sequence[Endpoint], why: str) -> None:
        for endpoint in endpoints:
            self._metrics.attempted(endpoint.name, "given_up")
            text = "webhook %s never took %s (%s of %s): %s"
            _log.warning(text, endpoint.name, event_id(event), event_type(event), event.subject, why)


class _Left:
    """Endpoints that need no further attempt, by name, and those that do."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.failed: list[Endpoint] = []


async def send_webhooks(gateway: Gateway) -> None:
    """Send events until cancelled, if this gateway knows endpoints."""
    if gateway.webhooks is None:
        return
    sender = Sender(gateway.webhooks, gateway.clock)
    try:
        await Dispatcher(gateway, gateway.webhooks, sender).run()
    finally:
        await sender.close()


@contextlib.asynccontextmanager
async def webhooks_sent(gateway: Gateway) -> AsyncIterator[None]:
    """Send events while inside, if this gateway knows endpoints."""
    task = asyncio.create_task(send_webhooks(gateway))
    try:
        yield
    finally:
        await end_tasks([task])

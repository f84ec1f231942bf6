"""The dispatcher of webhooks: when an event is sent again, and what it says then."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from prometheus_client import CollectorRegistry

from qlm.domain.errors import StoreDataError, StoreUnavailableError
from qlm.domain.ids import RequestId
from qlm.domain.ports.outbox import EndEvent
from qlm.domain.request import RequestRecord
from qlm.domain.shell.faults import FaultLog
from qlm.domain.shell.tasks import end_tasks
from qlm.gateway.observability.webhooks import WebhookMetrics
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.webhooks.dispatcher import Dispatcher
from qlm.gateway.webhooks.endpoints import Endpoint
from qlm.gateway.webhooks.sender import Attempt, Result, Sender
from qlm.store.embedded.memory import MemoryStore
from support.gateway import until
from support.webhook_world import added, webhooks

URL: Final = "http://receiver.example"


@dataclass
class SetClock:
    """A clock that stands still until it is set."""

    ns: int

    def now_ns(self) -> int:
        return self.ns


class NotedStore(MemoryStore):
    """A store that notes the times at which events that were settled are due again."""

    def __init__(self, clock: SetClock) -> None:
        super().__init__(clock)
        self.again_ns: list[int | None] = []

    async def settle_end(self, event: EndEvent, again_ns: int | None) -> bool:
        settled = await super().settle_end(event, again_ns)
        self.again_ns.append(again_ns)
        return settled


class BrokenStore(NotedStore):
    """A store in which records cannot be read while there is an error; it counts how often that is tried."""

    error: Exception | None
    read = 0

    async def record(self, id: RequestId) -> RequestRecord | None:
        self.read += 1
        if self.error is not None:
            raise self.error
        return await super().record(id)


@dataclass
class SetSender:
    """A sender whose attempts come out as one is told.

    Attributes:
        outcome: Makes an attempt.
        events: Event of each attempt.
    """

    outcome: Callable[[], Awaitable[Attempt]]
    events: list[EndEvent] = field(default_factory=list)

    async def send(self, endpoint: Endpoint, event: EndEvent) -> Attempt:
        self.events.append(event)
        return await self.outcome()


@contextlib.asynccontextmanager
async def dispatching(store: MemoryStore, clock: SetClock, sender: SetSender) -> AsyncIterator[None]:
    """Dispatch events of a store while inside; chance is at its largest."""
    parts: dict[str, Any] = {"store": store, "clock": clock, "faults": FaultLog()}
    parts["metrics"] = SimpleNamespace(webhooks=WebhookMetrics(CollectorRegistry()))
    gateway = cast("Gateway", SimpleNamespace(**parts))
    dispatcher = Dispatcher(gateway, webhooks(URL), cast("Sender", sender), lambda: 1.0, look_s=0.001)
    task = asyncio.create_task(dispatcher.run())
    try:
        yield
    finally:
        await end_tasks([task])


@pytest.mark.parametrize(
    ("spared_until_ns", "pauses_s"), [(0, [1, 2, 4, 4, 4, 4, 4, 4]), (1, [1, 2, 4, 8, 16, 32, 60, 60])]
)
async def test_an_event_whose_endpoint_is_only_busy_is_soon_due_again(
    spared_until_ns: int, pauses_s: list[float]
) -> None:
    async def spared() -> Attempt:
        return Attempt(Result.SPARED, spared_until_ns=spared_until_ns)

    event = added(1)
    clock = SetClock(event.at_ns)
    store = NotedStore(clock)
    await store.add_end(event)
    found_s = []
    async with dispatching(store, clock, SetSender(spared)):
        for _ in pauses_s:
            await until(lambda: store.again_ns)
            again_ns = store.again_ns.pop()
            assert again_ns is not None
            found_s.append((again_ns - clock.ns) / 1e9)
            clock.ns = again_ns
    assert found_s == pytest.approx(pauses_s)


async def delivered() -> Attempt:
    return Attempt(Result.DELIVERED)


@pytest.mark.parametrize("error", [StoreDataError("damaged"), ValueError("a bug")])
async def test_an_event_whose_record_cannot_be_read_is_sent_as_it_is(error: Exception) -> None:
    event = replace(added(1), ended_as="length")
    clock = SetClock(event.at_ns)
    store, sender = BrokenStore(clock), SetSender(delivered)
    store.error = error
    await store.add_end(event)
    async with dispatching(store, clock, sender):
        await until(lambda: store.again_ns == [None])
    assert [each.ended_as for each in sender.events] == ["length"]


async def test_an_event_waits_for_a_store_that_is_away() -> None:
    event = replace(added(1), ended_as="length")
    clock = SetClock(event.at_ns)
    store, sender = BrokenStore(clock), SetSender(delivered)
    store.error = StoreUnavailableError("away")
    await store.add_end(event)
    async with dispatching(store, clock, sender):
        await until(lambda: store.read)
        clock.ns += 60 * 10**9
        await until(lambda: store.read > 1)
        assert (sender.events, store.again_ns) == ([], [])
        store.error = None
        clock.ns += 60 * 10**9
        await until(lambda: store.again_ns == [None])


@pytest.mark.parametrize("first", ["stop", "length"])
async def test_an_event_says_the_same_in_each_attempt(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = iter((first, "stop"))

    async def seen(_: Gateway, event: EndEvent) -> EndEvent:
        return replace(event, ended_as=next(shown))

    async def failed() -> Attempt:
        return Attempt(Result.FAILED)

    monkeypatch.setattr("qlm.gateway.webhooks.dispatcher.as_seen", seen)
    event = replace(added(1), ended_as="length")
    clock = SetClock(event.at_ns)
    store, sender = NotedStore(clock), SetSender(failed)
    await store.add_end(event)
    async with dispatching(store, clock, sender):
        await until(lambda: sender.events)
        clock.ns += 10**9
        await until(lambda: len(sender.events) > 1)
    assert [each.ended_as for each in sender.events[:2]] == [first, first]


async def test_what_an_event_says_is_stored_before_its_first_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[EndEvent] = []
    event = replace(added(1), ended_as="length")
    clock = SetClock(event.at_ns)
    store = NotedStore(clock)

    async def seen(_: Gateway, event: EndEvent) -> EndEvent:
        return replace(event, ended_as="stop")

    async def killed() -> Attempt:
        clock.ns += 60 * 10**9
        stored.extend(await store.claim_ends(9, 60.0))  # as another gateway does after the claim
        raise asyncio.CancelledError

    monkeypatch.setattr("qlm.gateway.webhooks.dispatcher.as_seen", seen)
    await store.add_end(event)
    async with dispatching(store, clock, SetSender(killed)):
        await until(lambda: stored)
    assert [each.ended_as for each in stored] == ["stop"]


async def test_an_event_that_another_gateway_has_by_now_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    event = replace(added(1), ended_as="length")
    clock = SetClock(event.at_ns)
    store, sender = NotedStore(clock), SetSender(delivered)

    async def seen_late(_: Gateway, event: EndEvent) -> EndEvent:
        clock.ns += 60 * 10**9
        assert len(await store.claim_ends(9, 3600.0)) == 1
        return replace(event, ended_as="stop")

    monkeypatch.setattr("qlm.gateway.webhooks.dispatcher.as_seen", seen_late)
    await store.add_end(event)
    async with dispatching(store, clock, sender):
        await until(lambda: store.again_ns)
    assert sender.events == []

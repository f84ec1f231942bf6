"""The feed of the live page: one snapshot of the cluster for all viewers, made only while there is one."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

import orjson

from qlm.domain.errors import InvalidValueError, StoreUnavailableError
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId
from qlm.domain.ports.published import PublishedKind
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.fields.live import PlanChart, Tick
from qlm.gateway.api.fields.queues import ClassAttainment
from qlm.gateway.live.plan_chart import plan_chart
from qlm.gateway.live.snapshot import classes_of, live_instances, live_queues, progress
from qlm.gateway.observability.class_attainment import class_attainment
from qlm.gateway.sessions.gateway import Gateway
from qlm.planner.published_plan import PLAN, PublishedPlan

_log = logging.getLogger(__name__)

PAUSE_PER_COST: Final = 100.0
"""Time until the next chart of a plan over the processor time of the latest one: 1 % of a core."""

SLOW_EVERY: Final = 5
"""Rounds between two reads of what changes slowly: the attainment of 500 requests, and the leader."""

RETRY_MS: Final = 1000
"""Time after which a browser connects again."""


class LiveFeed:
    """The latest event of each kind, for all viewers.

    A viewer receives the present event of each kind, and then those that have changed. One that reads slowly
    skips what was replaced meanwhile, so it never costs memory.

    Attributes:
        rounds: Snapshots made so far.
    """

    def __init__(self, gateway: Gateway) -> None:
        """Make nothing yet; the first viewer starts it."""
        self.rounds = 0
        self._gateway = gateway
        self._events: dict[str, tuple[int, bytes]] = {}
        self._version = 0
        self._viewers: set[Viewer] = set()
        self._unwatched = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._attainment: list[ClassAttainment] = []
        self._leader: str | None = None
        self._plan_bytes: bytes | None = None
        self._plan: PublishedPlan | None = None
        self._plan_due_s = 0.0

    def viewer(self) -> "Viewer":
        """Open a viewer; close it with `leave`."""
        viewer = Viewer(self)
        self._viewers.add(viewer)
        self._unwatched.clear()
        if self._task is None:
            self._events.clear()
            self._plan_due_s = 0.0
            self._task = asyncio.get_running_loop().create_task(self._run())
        return viewer

    def leave(self, viewer: "Viewer") -> None:
        """Close a viewer; after the last one nothing is made any more."""
        self._viewers.discard(viewer)
        if not self._viewers:
            self._unwatched.set()

    @property
    def viewers(self) -> int:
        """Number of open viewers."""
        return len(self._viewers)

    @property
    def stopping(self) -> bool:
        """The gateway is stopping: viewers should go."""
        return self._gateway.hub.stopping

    def since(self, version: int) -> tuple[int, bytes]:
        """Return the present version, and the events since an earlier one."""
        events = (event for at, event in self._events.values() if version < at <= self._version)
        return self._version, b"".join(events)

    async def _run(self) -> None:
        interval_s = self._gateway.limits.view_interval_s
        while self._viewers:
            try:
                await self._read()
            except StoreUnavailableError as error:
                self._tick(str(error))
            except Exception as error:
                self._gateway.faults.note(_log, error, "the live page cannot be made")
                self._tick(f"the gateway failed: {type(error).__name__}")
            self._announce()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._unwatched.wait()
        self._task = None

    async def _read(self) -> None:
        gateway = self._gateway
        if self.rounds % SLOW_EVERY == 0 or not self._events:
            self._attainment = list(await class_attainment(gateway.store, gateway.clock.now_ns()))
            led = await gateway.store.leader()
            self._leader = None if led is None else led.leader
        self.rounds += 1
        view = gateway.load.view
        self._tick(gateway.load.unread_why)
        if view is None:
            return
        await self._read_plan()
        self._put("progress", progress(view, () if self._plan is None else self._plan.problem.groups))
        self._put("queues", live_queues(view, self._attainment, gateway.load.load.finished_per_s))
        self._put("instances", live_instances(view, gateway.configured.instances))

    async def _read_plan(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._plan_due_s:
            return
        data = await self._gateway.store.published(PublishedKind.PLAN)
        if data == self._plan_bytes and "plan" in self._events:
            return
        if data is None:
            self._plan = self._plan_bytes = None
            self._put("plan", None)
            return
        classes = classes_of(self._gateway.load.view)
        try:
            self._plan, chart, cost_s = await asyncio.to_thread(_drawn, data, classes)
        except InvalidValueError as error:
            self._gateway.faults.note(_log, error, "the plan cannot be shown")
        else:
            self._put("plan", chart)
            self._plan_due_s = asyncio.get_running_loop().time() + PAUSE_PER_COST * cost_s
        self._plan_bytes = data

    def _tick(self, trouble: str | None) -> None:
        tick: Tick = {
            "at_ms": self._gateway.clock.now_ns() // 1_000_000,
            "trouble": trouble,
            "leader": self._leader,
        }
        self._put("tick", tick)

    def _put(self, kind: str, fields: object) -> None:
        """Keep an event, if it differs from the latest one of its kind."""
        event = b"event: %s\ndata: %s\n\n" % (kind.encode(), orjson.dumps(fields))
        if kind not in self._events or self._events[kind][1] != event:
            self._events[kind] = (self._version + 1, event)

    def _announce(self) -> None:
        self._version += 1
        for viewer in self._viewers:
            viewer.wake()


def _drawn(data: bytes, classes: Mapping[GroupId, RequestClass]) -> tuple[PublishedPlan, PlanChart, float]:
    """Return a plan, its chart, and the processor time of both, seconds."""
    began_s = time.thread_time()
    published = PLAN.decode(data)
    chart = plan_chart(published, classes)
    return published, chart, time.thread_time() - began_s


class Viewer:
    """The stream of one viewer: a source for `StreamAnswer`.

    Attributes:
        interrupted: Always None: the gateway refuses viewers before it opens them.
        given_up: Always False.
        write: Not used: events wait until they are taken.
    """

    def __init__(self, feed: LiveFeed) -> None:
        """Begin before the first event."""
        self.interrupted: ApiError | None = None
        self.given_up = False
        self.write: Callable[[bytes], bool] | None = None
        self._feed = feed
        self._version: int | None = None
        self._woken = asyncio.Event()
        self._closed = False

    @property
    def ended(self) -> bool:
        """True if no event comes any more."""
        return self._closed or self._feed.stopping

    async def take(self) -> bytes:
        """Wait for events and return them; empty at the end of the stream."""
        if self._version is None:
            self._version = 0
            return b"retry: %d\n\n" % RETRY_MS
        while not self.ended:
            self._woken.clear()
            self._version, events = self._feed.since(self._version)
            if events:
                return events
            await self._woken.wait()
        return b""

    def wake(self) -> None:
        """Look for events."""
        self._woken.set()

    def close(self) -> None:
        """End the stream."""
        self._closed = True
        self.wake()

    def leave(self) -> None:
        """Let the feed make nothing for this viewer any more."""
        self._feed.leave(self)

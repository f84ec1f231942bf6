"""Simulated server of the shared state: the production state machine, whose announcements cross a network."""

import asyncio
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any, TypeVar

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ids import InstanceId
from qlm.domain.notices import InstanceNotice
from qlm.store.core import instances, output_log
from qlm.store.core.effects import Effects
from qlm.store.core.state import State
from qlm.store.redis.feed import MessageReader
from simulation.history import Ended, Flushed, History, KeyLost
from simulation.lost_keys import Key, LossyStore
from simulation.network import REPLY_TIMEOUT_S, Network, Server
from simulation.process import Process
from simulation.refusals import Refusal
from simulation.virtual_loop import EPOCH_NS, VirtualLoop

T = TypeVar("T")

MakeState = Callable[[int], State]
"""Makes an empty shared state of a given incarnation."""


class Subscription:
    """Announcements to one process on one topic: in order, late, and broken when one cannot be delivered."""

    def __init__(self, loop: VirtualLoop, network: Network, process: Process) -> None:
        self._loop = loop
        self._network = network
        self._process = process
        self._in_transit: list[Any] = []
        self._arrived: list[Any] = []
        self._broken = False
        self._reader: asyncio.Future[None] | None = None

    def put(self, item: object) -> None:
        """Send an announcement; those sent before an earlier one has arrived arrive together with it."""
        self._in_transit.append(item)
        if len(self._in_transit) == 1:
            # In a context of its own: it is the server that sends, whoever caused it.
            self._loop.call_later(self._network.trip_s(self._process.name), self._arrive, context=Context())

    async def take(self) -> list[Any]:
        """Wait for announcements.

        Raises:
            StoreUnavailableError: The connection broke, and some were lost with it.
        """
        if not (self._arrived or self._broken):
            self._reader = self._loop.create_future()
            await self._reader
            self._reader = None
        if self._broken:
            raise StoreUnavailableError("the subscription broke")
        taken, self._arrived = self._arrived, []
        return taken

    def _arrive(self) -> None:
        items, self._in_transit = self._in_transit, []
        outage = self._network.outage_of(self._process.name, Server.STORE)
        if not (outage and outage.of_answers) and not self._broken:
            self._arrived += items
            self._wake()
        elif not self._broken:
            # A silent outage is noticed only by a missing keep-alive.
            self._loop.call_later(REPLY_TIMEOUT_S if outage and outage.silent else 0.0, self._break)

    def _break(self) -> None:
        self._broken = True
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class StoreServer(LossyStore):
    """`MemoryStore` with delayed announcements. `flush` empties it; subscribers stay connected.

    Attributes:
        ended: Ends not yet recorded; `StoreRecorder` takes them after the call that caused them.
        repeats: Returns whether the present announcement is made twice.
        refusal: The state in which it refuses writes; None if it works.

    Args:
        loop: Source of time.
        network: Delays announcements.
        history: Records flushes.
        make_state: Makes the empty state of an incarnation.
    """

    def __init__(self, loop: VirtualLoop, network: Network, history: History, make_state: MakeState) -> None:
        self._loop = loop
        super().__init__(Process(loop, Server.STORE), state=make_state(EPOCH_NS))
        self._network = network
        self._history = history
        self._make_state = make_state
        self._subscriptions: dict[str, list[Subscription]] = {}
        self.ended: list[Ended] = []
        self.repeats: Callable[[], bool] = lambda: False
        self.refusal: Refusal | None = None

    def flush(self) -> None:
        """Clear the state, as FLUSHALL does; the next incarnation is larger."""
        self._state = self._make_state(max(self._loop.now_ns, self._state.incarnation + 1))
        self._published.clear()
        self._media.clear()
        self._damaged.clear()
        self._history.add(Flushed(self._loop.time(), self._state.incarnation))

    def lose(self, key: Key) -> None:
        super().lose(key)
        self._history.add(KeyLost(self._loop.time(), key.kind, str(key.of)))
        self._history.coverage[f"{key.kind} lost"] += 1

    def topics(self) -> list[str]:
        """List the topics with subscribers."""
        return [topic for topic, opened in self._subscriptions.items() if opened]

    def announce(self, topic: str, message: bytes) -> None:
        """Announce what any client of the server may write."""
        for opened in self._subscriptions.get(topic, ()):
            opened.put(message)

    def reader(self, topic: str, read: Callable[[bytes], Iterable[T]]) -> MessageReader[T]:
        """Make the reader of one subscription."""
        return MessageReader(topic, read)

    def standing_notices(self, instance: InstanceId) -> tuple[InstanceNotice, ...]:
        """Return the notices to repeat to an instance that may have missed some."""
        return instances.standing_notices(self._state, instance)

    def subscribe(self, topic: str, process: Process) -> Subscription:
        """Open a subscription."""
        opened = Subscription(self._loop, self._network, process)
        self._subscriptions.setdefault(topic, []).append(opened)
        return opened

    def unsubscribe(self, topic: str, opened: Subscription) -> None:
        """Close a subscription."""
        self._subscriptions[topic].remove(opened)

    async def _commit(self, step: tuple[T, Effects]) -> T:
        answer, effects = step
        self._announce(effects)
        self._drop_ended(effects.ended)
        for id in effects.ended:
            output = output_log.read_output(self._state, id, 0)
            if output is not None and output.outcome is not None:
                self.ended.append(Ended(self._loop.time(), id, output.outcome))
        return answer

    def _announce(self, effects: Effects) -> None:
        for watcher, part in effects.outputs:
            self._put(f"outputs {watcher}", part)
        for instance, notice in effects.notices:
            self._put(f"notices {instance}", notice)
        for reason in effects.wakeups:
            self._put("wakeups", reason)

    def _put(self, topic: str, item: object) -> None:
        for opened in self._subscriptions.get(topic, ()):
            opened.put(item)
            if self.repeats():
                opened.put(item)

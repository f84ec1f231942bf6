"""The shared state as a server: the production state machine, which announces through a network."""

from collections.abc import Callable
from typing import TypeVar

from qlm.domain.ids import InstanceId
from qlm.domain.notices import InstanceNotice
from qlm.simulator.system.history import Ended, Flushed, History
from qlm.simulator.system.network import Network, Server
from qlm.simulator.system.process import Process
from qlm.simulator.system.subscription import Subscription
from qlm.simulator.system.virtual_loop import EPOCH_NS, VirtualLoop
from qlm.store.core import StoreCore
from qlm.store.effects import Effects
from qlm.store.memory import MemoryStore

T = TypeVar("T")

MakeCore = Callable[[int], StoreCore]
"""Makes an empty shared state of a given incarnation."""


class StoreServer(MemoryStore):
    """A `MemoryStore` whose announcements travel; `flush` empties it, subscribers stay connected.

    Attributes:
        ended: Requests that ended, for `StoreNotes` to note after the call that ended them.
        repeats: Whether this announcement is made twice.

    Args:
        loop: The time.
        network: Carries announcements.
        history: Notes ends and flushes.
        make_core: Makes the state machine.
    """

    def __init__(self, loop: VirtualLoop, network: Network, history: History, make_core: MakeCore) -> None:
        self._loop = loop
        super().__init__(Process(loop, Server.STORE), core=make_core(EPOCH_NS))
        self._network = network
        self._history = history
        self._make_core = make_core
        self._subscriptions: dict[str, list[Subscription]] = {}
        self.ended: list[Ended] = []
        self.repeats: Callable[[], bool] = lambda: False

    def flush(self) -> None:
        """Forget everything, as after FLUSHALL; the next incarnation is larger."""
        self._core = self._make_core(max(self._loop.now_ns, self._core.incarnation + 1))
        self._plan = self._signal = None
        self._history.add(Flushed(self._loop.time(), self._core.incarnation))

    def standing_notices(self, instance: InstanceId) -> tuple[InstanceNotice, ...]:
        """What an instance must be told when its notices may have been missed."""
        return self._core.standing_notices(instance)

    def subscribe(self, topic: str, process: Process) -> Subscription:
        """Open a subscription; `unsubscribe` ends it."""
        opened = Subscription(self._loop, self._network, process)
        self._subscriptions.setdefault(topic, []).append(opened)
        return opened

    def unsubscribe(self, topic: str, opened: Subscription) -> None:
        """Close a subscription."""
        self._subscriptions[topic].remove(opened)

    async def _commit(self, step: tuple[T, Effects]) -> T:
        answer, effects = step
        self._announce(effects)
        for id in effects.ended:
            output = self._core.read_output(id, 0)
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

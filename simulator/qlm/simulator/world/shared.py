"""What all parts of the simulated world share: the store's core, the global queue, and who is told what."""

from collections.abc import Callable
from typing import TypeVar

from qlm.domain.ids import GatewayId, InstanceId
from qlm.domain.notices import InstanceNotice
from qlm.domain.output import OutputSlice
from qlm.simulator.scenario import Network
from qlm.simulator.world.queues import GlobalQueue
from qlm.simulator.world.timeline import EPOCH_NS, Rank, Timeline
from qlm.store.core import StoreCore
from qlm.store.effects import Effects
from qlm.store.limits import StoreLimits

T = TypeVar("T")

RESULTS_KEPT = 1000
"""Ended requests that the shared state keeps: clients note results at once, so few are enough."""


class SharedParts:
    """Store, broker and network of the world.

    Attributes:
        store: The production state machine of the shared state.
        queue: The global queue.
        store_down: The shared state cannot be reached.
        broker_down: The global queue cannot be reached.
    """

    def __init__(self, timeline: Timeline, network: Network) -> None:
        self.timeline = timeline
        self.store = StoreCore(EPOCH_NS, StoreLimits(results_max=RESULTS_KEPT, events_max=8))
        self.queue = GlobalQueue()
        self.store_down = False
        self.broker_down = False
        self.store_ns = round(network.store_s * 1e9)
        self.broker_ns = round(network.broker_s * 1e9)
        self.notice_ns = round(network.notice_s * 1e9)
        self.on_notice: dict[InstanceId, Callable[[InstanceNotice], None]] = {}
        self.on_output: dict[GatewayId, Callable[[OutputSlice], None]] = {}
        self.on_wakeup: Callable[[], None] = lambda: None

    def commit(self, step: tuple[T, Effects]) -> T:
        """Announce the effects of a step of the store, then return its answer."""
        answer, effects = step
        for instance, notice in effects.notices:
            listener = self.on_notice.get(instance)
            if listener is not None:
                listener(notice)
        for gateway, part in effects.outputs:
            self.on_output[gateway](part)
        if effects.wakeups:
            self.on_wakeup()
        return answer

    def store_answers(self, entity: int, do: Callable[[object], None], what: object = None) -> None:
        """Call `do` when a round trip to the store is over."""
        self.timeline.at(self.timeline.now_ns + self.store_ns, Rank.STORE, entity, do, what)

    def broker_answers(self, entity: int, do: Callable[[object], None], what: object = None) -> None:
        """Call `do` when a round trip to the broker is over."""
        self.timeline.at(self.timeline.now_ns + self.broker_ns, Rank.BROKER, entity, do, what)

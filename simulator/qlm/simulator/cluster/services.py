"""Services that all parts of a simulated cluster share: store core, broker, network, notifications."""

from collections.abc import Callable
from typing import TypeVar

from qlm.domain.formats.clusters import NO_CLUSTERS
from qlm.domain.ids import GatewayId, InstanceId
from qlm.domain.notices import InstanceNotice
from qlm.domain.output import OutputSlice
from qlm.simulator.cluster.broker import SimulatedBroker
from qlm.simulator.cluster.event_queue import EPOCH_NS, EventQueue, Rank
from qlm.simulator.cluster.waiting_work import WaitingWork
from qlm.simulator.scenario import Network
from qlm.store.core.effects import Effects
from qlm.store.core.limits import StoreLimits
from qlm.store.core.state import State

T = TypeVar("T")

RESULTS_KEPT = 1000
"""Finished requests that the store keeps: clients record results at once, so few are enough."""


class SharedServices:
    """Store, broker and network of the simulation.

    Attributes:
        state: The shared state, as production keeps it in process.
        store_down: An outage of the store is in progress.
        broker_down: An outage of the broker is in progress.
        clusters: Token clusters as the controller published them.
        store_ns: Round-trip time to the store.
        broker_ns: Round-trip time to the broker.
        notice_ns: Delay of a notification.
        waiting: Requests that wait, for the account of idle time.
    """

    def __init__(self, event_queue: EventQueue, network: Network) -> None:
        self.event_queue = event_queue
        self.state = State(EPOCH_NS, StoreLimits(results_max=RESULTS_KEPT, events_max=8))
        self.broker = SimulatedBroker()
        self.waiting = WaitingWork()
        self.store_down = False
        self.broker_down = False
        self.clusters = NO_CLUSTERS
        self.store_ns = round(network.store_s * 1e9)
        self.broker_ns = round(network.broker_s * 1e9)
        self.notice_ns = round(network.notice_s * 1e9)
        self.on_notice: dict[InstanceId, Callable[[InstanceNotice], None]] = {}
        self.on_output: dict[GatewayId, Callable[[OutputSlice], None]] = {}
        self.on_wakeup: Callable[[], None] = lambda: None

    def commit(self, result: tuple[T, Effects]) -> T:
        """Deliver the notifications of a store operation, then return its answer."""
        answer, effects = result
        for instance, notice in effects.notices:
            listener = self.on_notice.get(instance)
            if listener is not None:
                listener(notice)
        for gateway, part in effects.outputs:
            self.on_output[gateway](part)
        if effects.wakeups:
            self.on_wakeup()
        return answer

    def after_store(self, entity: int, do: Callable[[object], None], what: object = None) -> None:
        """Call `do(what)` after a round trip to the store."""
        self.event_queue.schedule(self.event_queue.now_ns + self.store_ns, Rank.STORE, entity, do, what)

    def after_broker(self, entity: int, do: Callable[[object], None], what: object = None) -> None:
        """Call `do(what)` after a round trip to the broker."""
        self.event_queue.schedule(self.event_queue.now_ns + self.broker_ns, Rank.BROKER, entity, do, what)

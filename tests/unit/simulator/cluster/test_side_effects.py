"""Side effects of a simulated agent: evictions are counted by type; outages delay what needs the service."""

from dataclasses import replace

import pytest

from qlm.domain.actions import Return
from qlm.domain.ids import InstanceId, RequestId
from qlm.domain.lease import Epoch
from qlm.simulator.cluster.event_queue import EPOCH_NS, EventQueue
from qlm.simulator.cluster.services import SharedServices
from qlm.simulator.cluster.side_effects import SideEffects
from qlm.simulator.scenario import Network
from support.requests import a_request

INSTANCE = InstanceId("i")
REQUEST = a_request("r")
SECOND = 1_000_000_000


class Bench:
    """Side effects of one instance, with one message delivered to it."""

    def __init__(self) -> None:
        self.events = EventQueue()
        self.services = SharedServices(self.events, Network())
        self.evicted: list[RequestId] = []
        self.effects = SideEffects(self.services, INSTANCE, 0, self.evicted.append)
        self.services.broker.publish(REQUEST.cls.queue, REQUEST)
        ((delivery, _),) = self.services.broker.get(REQUEST.cls.queue, 1, INSTANCE)
        self.back = Return(
            id=REQUEST.id, epoch=None, delivery=delivery, home=REQUEST.cls.queue, why="", evicted=False
        )

    def run(self, seconds: float) -> None:
        self.events.run(EPOCH_NS + round(seconds * SECOND), 1000)

    def returned(self) -> bool:
        return self.services.broker.depth(REQUEST.cls.queue) == 1


@pytest.mark.parametrize(
    ("evicted", "why"), [(True, "making way for an urgent group"), (False, "evicted, says a sentence")]
)
def test_an_eviction_is_counted_whatever_its_reason_is_called(evicted: bool, why: str) -> None:
    bench = Bench()
    bench.effects.put(replace(bench.back, evicted=evicted, why=why))
    bench.run(1)
    assert bench.returned()
    assert bench.evicted == [REQUEST.id] * evicted


@pytest.mark.parametrize(("epoch", "needs_store"), [(None, False), (Epoch(1, 1), True)])
def test_only_a_return_with_a_lease_waits_for_the_store(epoch: Epoch | None, needs_store: bool) -> None:
    bench = Bench()
    bench.services.store_down = True
    bench.effects.put(replace(bench.back, epoch=epoch))
    bench.run(5)
    assert bench.returned() != needs_store
    bench.services.store_down = False
    bench.run(6)
    assert bench.returned()

"""Contract of the simulated broker, as a state machine."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from qlm.broker.topology import hold_queue
from qlm.domain.ids import InstanceId
from qlm.domain.ports.broker import Delivery
from qlm.simulator.cluster.broker import SimulatedBroker
from support.requests import a_request

A, B = InstanceId("a"), InstanceId("b")
HOLDERS = st.sampled_from([A, B])


class Queues(RuleBasedStateMachine):
    """Random use by two holders, against sets of ids."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = SimulatedBroker()
        self.alive: set[str] = set()
        self.out: dict[InstanceId, dict[str, Delivery]] = {A: {}, B: {}}
        self.returned: set[str] = set()
        self.last_fresh = -1
        self.moved: set[str] = set()
        self.count = 0

    @rule()
    def publish(self) -> None:
        request = a_request(f"q{self.count:04d}")
        self.broker.publish(request.cls.queue, request)
        self.alive.add(request.id)
        self.count += 1

    @rule(holder=HOLDERS, limit=st.integers(1, 4))
    def get(self, holder: InstanceId, limit: int) -> None:
        for delivery, request in self.broker.get(a_request("x").cls.queue, limit, holder):
            assert request.id in self.alive
            assert all(request.id not in taken for taken in self.out.values()), "handed out twice"
            assert delivery.redelivered == (request.id in self.returned)
            if not delivery.redelivered and request.id not in self.moved:
                assert int(request.id[1:]) > self.last_fresh, "first in, first out among what never returned"
                self.last_fresh = int(request.id[1:])
            self.out[holder][request.id] = delivery

    @rule(holder=HOLDERS, data=st.data())
    def ack(self, holder: InstanceId, data: st.DataObject) -> None:
        if self.out[holder]:
            id = data.draw(st.sampled_from(sorted(self.out[holder])))
            delivery = self.out[holder].pop(id)
            assert self.broker.ack(delivery, holder)
            assert not self.broker.ack(delivery, holder), "an acknowledged message is gone"
            self.alive.discard(id)

    @rule(holder=HOLDERS, data=st.data())
    def requeue(self, holder: InstanceId, data: st.DataObject) -> None:
        if self.out[holder]:
            id = data.draw(st.sampled_from(sorted(self.out[holder])))
            assert self.broker.requeue(self.out[holder].pop(id), holder)
            self.returned.add(id)

    @rule(holder=HOLDERS)
    def die(self, holder: InstanceId) -> None:
        self.broker.disconnect(holder)
        self.returned |= self.out[holder].keys()
        self.out[holder].clear()

    @rule(holder=HOLDERS, data=st.data())
    def hand_over(self, holder: InstanceId, data: st.DataObject) -> None:
        """To the other's hold queue, and from there back to the class when that one is dead."""
        if self.out[holder]:
            id = data.draw(st.sampled_from(sorted(self.out[holder])))
            other = B if holder == A else A
            assert self.broker.move(self.out[holder].pop(id), holder, hold_queue(other))
            assert self.broker.depth(hold_queue(other)) == 1
            assert self.broker.empty_hold_queue(other) == 1
            self.moved.add(id)
            self.returned.discard(id)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.broker.messages() == len(self.alive)


TestQueues = Queues.TestCase
TestQueues.settings = settings(max_examples=60, stateful_step_count=40)

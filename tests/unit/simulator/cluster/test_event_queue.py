"""Total order of the events of a simulation."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.simulator.cluster.event_queue import EPOCH_NS, EventQueue, Rank

EVENTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(list(Rank)), st.integers(0, 3)), unique=True, max_size=30
)


@given(events=EVENTS, seed=st.integers(0, 1000))
def test_the_order_of_scheduling_does_not_matter(events: list[tuple[int, Rank, int]], seed: int) -> None:
    def happen(order: list[tuple[int, Rank, int]]) -> list[object]:
        event_queue, seen = EventQueue(), list[object]()
        for after_ns, rank, entity in order:
            event_queue.schedule(EPOCH_NS + after_ns, rank, entity, seen.append, (after_ns, rank, entity))
        event_queue.run(EPOCH_NS + 3, 1000)
        return seen

    shuffled = random.Random(seed).sample(events, len(events))
    assert happen(events) == happen(shuffled) == sorted(events)


def test_simultaneous_events_of_one_entity_happen_in_the_order_of_their_scheduling() -> None:
    event_queue, seen = EventQueue(), list[int]()
    for number in range(5):
        event_queue.schedule(EPOCH_NS + 1, Rank.STORE, 7, seen.append, number)
    event_queue.run(EPOCH_NS + 1, 1000)
    assert seen == [0, 1, 2, 3, 4]


def test_nothing_happens_in_the_past() -> None:
    event_queue = EventQueue()
    event_queue.schedule(EPOCH_NS + 10, Rank.TIMER, 0, lambda _: None)
    event_queue.run(EPOCH_NS + 10, 1000)
    assert event_queue.now_ns == EPOCH_NS + 10 and event_queue.now_s == pytest.approx(1e-8)
    with pytest.raises(InvalidValueError, match="at_ns"):
        event_queue.schedule(EPOCH_NS + 9, Rank.TIMER, 0, lambda _: None)
    assert event_queue.next_ns is None

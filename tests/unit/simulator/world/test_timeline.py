"""Virtual time is totally ordered."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.simulator.world.timeline import EPOCH_NS, Rank, Timeline

EVENTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(list(Rank)), st.integers(0, 3)), unique=True, max_size=30
)


@given(events=EVENTS, seed=st.integers(0, 1000))
def test_the_order_of_scheduling_does_not_matter(events: list[tuple[int, Rank, int]], seed: int) -> None:
    def happen(order: list[tuple[int, Rank, int]]) -> list[object]:
        timeline, seen = Timeline(), list[object]()
        for after_ns, rank, entity in order:
            timeline.at(EPOCH_NS + after_ns, rank, entity, seen.append, (after_ns, rank, entity))
        while timeline.step():
            pass
        return seen

    shuffled = random.Random(seed).sample(events, len(events))
    assert happen(events) == happen(shuffled) == sorted(events)


def test_events_of_one_entity_happen_in_the_order_in_which_they_were_asked_for() -> None:
    timeline, seen = Timeline(), list[int]()
    for number in range(5):
        timeline.at(EPOCH_NS + 1, Rank.STORE, 7, seen.append, number)
    while timeline.step():
        pass
    assert seen == [0, 1, 2, 3, 4]


def test_nothing_happens_in_the_past() -> None:
    timeline = Timeline()
    timeline.at(EPOCH_NS + 10, Rank.TIMER, 0, lambda _: None)
    assert timeline.step() and timeline.now_ns == EPOCH_NS + 10 and timeline.now_s == pytest.approx(1e-8)
    with pytest.raises(InvalidValueError, match="at_ns"):
        timeline.at(EPOCH_NS + 9, Rank.TIMER, 0, lambda _: None)
    assert not timeline.step()

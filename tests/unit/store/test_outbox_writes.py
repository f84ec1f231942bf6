"""The outbox writes what has changed of an event, and not when it is due; it hands out each event once."""

from dataclasses import replace

from qlm.domain.ports.outbox import EndEvent
from qlm.store.core import outbox
from qlm.store.core.effects import Effects
from qlm.store.core.state import State


def test_an_event_that_is_only_due_again_is_not_written() -> None:
    state = State(1)
    outbox.add(state, EndEvent(subject="r1", ended_as="stop", tenant="a", at_ns=1), 1, Effects())
    (claimed,) = outbox.claim(state, 9, 10, 2, lambda _: True)
    settled, effects = outbox.settle(state, claimed, 5)
    assert settled and effects.outbox == {}
    assert outbox.claim(state, 9, 10, 4, lambda _: True) == []
    (again,) = outbox.claim(state, 9, 10, 5, lambda _: True)
    failed = replace(again, failures=1)
    assert outbox.settle(state, failed, 6)[1].outbox == {"r1": failed}


def test_an_event_that_was_put_back_to_the_end_of_its_claim_is_claimed_once() -> None:
    state = State(1)
    outbox.add(state, EndEvent(subject="r1", ended_as="stop", tenant="a", at_ns=1), 1, Effects())
    (claimed,) = outbox.claim(state, 9, 10, 2, lambda _: True)
    outbox.settle(state, claimed, 10)
    assert [each.attempts for each in outbox.claim(state, 9, 20, 10, lambda _: True)] == [2]

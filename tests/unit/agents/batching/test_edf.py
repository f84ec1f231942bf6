"""Earliest deadline first, by the next token of a reader or by the deadline of the answer."""

import numpy as np

from qlm.agents.batching.policies.edf import QUANTUM_S, EarliestDeadlineFirst, due_s
from qlm.agents.batching.view import FIRST_TOKEN_ONLY, Place
from support.batch_views import MACHINE, Row, view

TWO = MACHINE._replace(kv_blocks=16)  # of 100 tokens and growth: 8 blocks each


def test_each_objective_has_one_next_deadline() -> None:
    seen = view(
        Row("new reader", arrival_s=3.0, rate=5.0, ttft_s=1.0),
        Row("reader", arrival_s=3.0, rate=5.0, ttft_s=1.0, generated=4, read_end_s=7.5),
        Row("deadline", deadline_s=20.0),
        Row("both", arrival_s=3.0, rate=5.0, ttft_s=1.0, deadline_s=3.5),
        Row("first token", arrival_s=3.0, rate=FIRST_TOKEN_ONLY, ttft_s=2.0),
        Row("answered", arrival_s=3.0, rate=FIRST_TOKEN_ONLY, ttft_s=2.0, generated=1, read_end_s=5.0),
        Row("batch", arrival_s=3.0),
        now_s=5.0,
    )
    np.testing.assert_allclose(due_s(seen), [4.0, 7.5, 20.0, 3.5, 5.0, np.inf, np.inf])


def test_who_is_due_first_runs_and_displaces_who_is_due_last() -> None:
    rows = [
        Row("a", Place.INSIDE, deadline_s=9.0),
        Row("b", Place.INSIDE, deadline_s=5.0),
        Row("c", deadline_s=7.0),
    ]
    decision = EarliestDeadlineFirst().decide(view(*rows, machine=TWO, now_s=1.0))
    assert decision.run == ("b", "c")
    assert decision.again_s == 1.0 + QUANTUM_S


def test_of_equal_deadlines_who_runs_goes_on() -> None:
    rows = [Row("early", arrival_s=0.0), Row("x", Place.INSIDE, 1.0), Row("y", Place.INSIDE, 2.0)]
    assert EarliestDeadlineFirst().decide(view(*rows, machine=TWO)).run == ("x", "y")


def test_without_a_request_outside_it_waits_for_an_event() -> None:
    assert EarliestDeadlineFirst().decide(view(Row("a", Place.INSIDE))).again_s is None
    assert EarliestDeadlineFirst().room(view(Row("a"))) == 2 * MACHINE.seqs_max - 1

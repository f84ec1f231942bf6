"""Readers of requests, advanced by the times of their tokens."""

from math import inf

import pytest

from qlm.agents.batching.sent_objective import NO_OBJECTIVE, Objective
from qlm.agents.batching.view import FIRST_TOKEN_ONLY
from qlm.agents.vllm_scheduler.streamed import StreamedRequest


def test_times_are_relative_to_the_arrival_at_qlm() -> None:
    request = StreamedRequest(Objective(age_s=2.0, ttft_s=1.0, rate=4.0, left_s=5.0), 100.0)
    assert (request.arrival_s, request.deadline_s, request.read_end_s) == (98.0, 105.0, 98.0)
    request.deliver(1, 100.5)  # due at 99
    assert request.late_s == pytest.approx(1.5)
    request.deliver(2, 100.6)
    # Three tokens at 4/s from the due time of the first, and 1.5 s later than that.
    assert request.read_end_s == pytest.approx(99.0 + 3 / 4 + 1.5)
    assert request.late_sum_s == pytest.approx(4.5)


def test_a_resumed_reader_keeps_its_lateness_and_its_tokens() -> None:
    request = StreamedRequest(Objective(age_s=10.0, ttft_s=1.0, rate=2.0, shown=6, late_s=3.0), 50.0)
    assert request.read_end_s == pytest.approx(40.0 + 1.0 + 6 / 2 + 3.0)
    request.deliver(1, 47.5)  # token 6 is due at 44; 3.5 s late
    assert request.late_s == pytest.approx(3.5)
    assert request.late_sum_s == pytest.approx(6 * 3.0 + 3.5)


def test_where_the_first_token_counts_no_other_is_late() -> None:
    request = StreamedRequest(Objective(ttft_s=1.0, rate=FIRST_TOKEN_ONLY), 0.0)
    assert request.read_end_s == 0.0
    request.deliver(3, 1.5)
    request.deliver(1, 90.0)
    assert (request.late_s, request.late_sum_s, request.read_end_s) == (0.5, 0.5, inf)


def test_without_a_reader_nothing_is_late() -> None:
    request = StreamedRequest(NO_OBJECTIVE, 7.0)
    request.deliver(5, 1000.0)
    assert (request.late_s, request.late_sum_s, request.read_end_s, request.deadline_s) == (0, 0, 7.0, inf)

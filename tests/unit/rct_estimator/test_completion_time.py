import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.rct_estimator.completion_time import request_completion
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.waiting_time import QueuePart, emptying_times, waiting_time
from support.batch_slots import CAP, STEP_S, draw, known, serve, state_of

LENGTHS = known(draw(np.random.default_rng(0), 20_000))
STATE = state_of(LENGTHS, 16)
waits = st.builds(Normal, st.floats(0, 300), st.floats(0, 900))


def test_request_completion_adds_wait_prefill_and_decode() -> None:
    state = replace(STATE, prefill_s=0.4)
    completion = request_completion(Normal(10.0, 4.0), state, LENGTHS, cap=CAP)
    mean_s = 10 + 0.4 + (LENGTHS.length(CAP).mean - 1) * STEP_S
    assert completion.normal.mean == pytest.approx(mean_s, rel=0.001)
    deadline_span_s = math.sqrt(4 + LENGTHS.length(CAP).var * STEP_S**2)
    assert math.sqrt(completion.normal.var) == pytest.approx(deadline_span_s, rel=0.05)


@pytest.mark.parametrize(("places", "requests"), [(16, 64), (16, 300), (64, 256), (64, 30)])
def test_p_met_and_intervals_of_a_request_are_those_of_many_trials(places: int, requests: int) -> None:
    rng = np.random.default_rng(places + requests)
    state = state_of(LENGTHS, places)
    _, end_s = serve(draw(rng, 1500, requests), places)
    actual = end_s[:, -1]
    wait = waiting_time([QueuePart(state=state, requests=requests)], free=math.inf)
    completion = request_completion(wait, state, LENGTHS, cap=CAP)
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        assert completion.at_most(float(np.quantile(actual, share))) == pytest.approx(share, abs=0.07)
    low, high = completion.quantile(0.05), completion.quantile(0.95)
    assert 0.85 <= np.mean((actual > low) & (actual <= high)) <= 0.95


@pytest.mark.parametrize(
    ("places", "log_sd", "requests"),
    [(16, 0.8, 64), (16, 0.8, 300), (64, 1.0, 256), (64, 0.4, 256), (64, 0.8, 30)],
)
def test_group_completion_is_that_of_many_trials(places: int, log_sd: float, requests: int) -> None:
    rng = np.random.default_rng(11)
    lengths = known(draw(rng, 20_000, log_sd=log_sd))
    state = state_of(lengths, places)
    _, end_s = serve(draw(rng, 1000, requests, log_sd=log_sd), places)
    done_s = end_s.max(axis=1)
    wait = waiting_time([QueuePart(state=state, requests=requests)], free=math.inf)
    # Equation 5, C = max_q C_q: once the last request has its slot, the longest one in the batch decides.
    group = wait + emptying_times(state, lengths, requests=requests, cap=CAP)[0]
    assert group.mean == pytest.approx(done_s.mean(), rel=0.03)
    assert math.sqrt(group.var) == pytest.approx(done_s.std(), rel=0.2)


@given(waits, st.floats(0, 600), st.floats(0, 600))
def test_a_longer_deadline_never_lowers_p_met(wait: Normal, one: float, other: float) -> None:
    completion = request_completion(wait, STATE, LENGTHS, cap=CAP)
    early, late = sorted([one, other])
    assert 0 <= completion.at_most(early) <= completion.at_most(late) <= 1 + 1e-12


@given(waits, st.floats(0, 100), st.floats(0, 600))
def test_more_ahead_never_completes_earlier(wait: Normal, more_s: float, deadline_s: float) -> None:
    later = Normal(wait.mean + more_s, wait.var)
    near, far = (request_completion(w, STATE, LENGTHS, cap=CAP) for w in (wait, later))
    assert far.normal.mean >= near.normal.mean
    assert far.at_most(deadline_s) <= near.at_most(deadline_s) + 1e-12


@given(st.integers(1, 500), st.integers(1, 500), st.sampled_from([0.0, math.inf]))
def test_a_larger_group_is_not_done_earlier(one: int, other: int, free: float) -> None:
    few, many = sorted([one, other])
    waits = [waiting_time([QueuePart(state=STATE, requests=n)], free=free) for n in (few, many)]
    done = [
        wait + emptying_times(STATE, LENGTHS, requests=n, cap=CAP)[0]
        for wait, n in zip(waits, (few, many), strict=True)
    ]
    assert done[0].mean <= done[1].mean * 1.02
    assert all(group.var >= wait.var for group, wait in zip(done, waits, strict=True))


@given(waits, st.floats(0.01, 0.99))
def test_quantile_and_p_met_are_inverse(wait: Normal, share: float) -> None:
    completion = request_completion(wait, STATE, LENGTHS, cap=CAP)
    at_s = completion.quantile(share)
    assert completion.at_most(at_s) >= share - 1e-6
    assert completion.at_most(at_s - 1e-3) <= share + 0.07

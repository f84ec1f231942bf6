import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.rct_estimator.length_predictive import LengthPredictive
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.throughput import SteadyState
from qlm.rct_estimator.waiting_time import (
    QueuePart,
    emptying_times,
    waiting_time,
    waiting_times,
)
from qlm.rct_estimator.workload import Workload
from support.batch_slots import CAP, STEP_S, WAITING_R2, draw, known, serve, state_of

LENGTHS = known(draw(np.random.default_rng(0), 20_000))
STATE = state_of(LENGTHS, 16)
SWAP = Normal(5.0, 1.0)

parts = st.lists(
    st.builds(
        QueuePart,
        state=st.sampled_from([STATE, replace(STATE, request_s=0.7, prompt_s=0.2)]),
        requests=st.integers(0, 200).map(float),
        cls=st.sampled_from("ab"),
        swap=st.sampled_from([None, SWAP]),
        emptying=st.just(Normal(3.0, 2.0)),
    ),
    max_size=8,
)
free = st.one_of(st.just(0.0), st.just(math.inf), st.floats(0, 20))


@pytest.mark.parametrize(
    ("places", "log_sd", "requests"), [(16, 0.8, 64), (16, 0.8, 300), (64, 1.0, 256), (64, 0.4, 256)]
)
def test_waiting_time_from_an_empty_batch_is_that_of_many_trials(
    places: int, log_sd: float, requests: int
) -> None:
    rng = np.random.default_rng(7)
    lengths = known(draw(rng, 20_000, log_sd=log_sd))
    state = state_of(lengths, places)
    start_s, _ = serve(draw(rng, 600, requests, log_sd=log_sd), places)
    ranks = np.arange(1, requests + 1)
    mean_s, late = waiting_times(state, ranks, free=math.inf), ranks > 1.5 * places
    assert np.mean(np.abs(mean_s / start_s.mean(axis=0).clip(1e-9) - 1)[late]) < 0.03
    last = waiting_time([QueuePart(state=state, requests=requests)], free=math.inf)
    assert last.mean == pytest.approx(start_s[:, -1].mean(), rel=0.03)
    assert math.sqrt(last.var) == pytest.approx(start_s[:, -1].std(), rel=0.1)
    assert np.all(mean_s[:places] == 0)


@pytest.mark.parametrize(("places", "log_sd", "bound"), [(16, 1.2, 0.08), (128, 1.2, 0.08), (64, 1.0, 0.06)])
def test_long_answers_pile_up_in_a_batch_that_began_empty(places: int, log_sd: float, bound: float) -> None:
    """Where tails are heavy, a straight line would have the first few batches wait for nothing."""
    rng = np.random.default_rng(12)
    tokens = np.maximum(1.0, rng.lognormal(5, log_sd, (200, 8 * places)).round())
    length = Normal(float(tokens.mean()), float(tokens.var()))
    workload = Workload(prompt_tokens=0.0, output=length, output_cube=float((tokens**3).mean()))
    state = replace(state_of(LENGTHS, places), workload=workload, request_s=length.mean * STEP_S / places)
    start_s, _ = serve(tokens, places)
    ranks = np.arange(1, 8 * places + 1)
    error = np.abs(waiting_times(state, ranks, free=math.inf) / start_s.mean(axis=0).clip(1e-9) - 1)
    assert error[ranks > 1.25 * places].mean() < bound
    assert error[ranks > 1.25 * places].max() < 0.25


def test_waiting_time_is_linear_in_position_as_the_paper_says() -> None:
    start_s, _ = serve(draw(np.random.default_rng(8), 1, 600), 16)
    actual, forecast = start_s[0, 16:], waiting_times(STATE, np.arange(17, 601), free=math.inf)
    unexplained = np.sum((actual - forecast) ** 2) / np.sum((actual - actual.mean()) ** 2)
    assert 1 - unexplained >= WAITING_R2


def test_behind_a_full_batch_each_request_waits_for_one_end_more() -> None:
    first, second = waiting_times(STATE, [1, 2])
    assert (first, second) == pytest.approx((STATE.request_s, 2 * STATE.request_s))
    part = QueuePart(state=STATE, requests=10)
    assert waiting_time([part]).mean == pytest.approx(10 * STATE.request_s)


def test_the_uncertainty_of_a_class_adds_up_over_its_groups_instead_of_averaging_out() -> None:
    doubtful = replace(STATE, workload=replace(STATE.workload, mean_var=400.0))
    same = [QueuePart(state=doubtful, requests=50, cls="a") for _ in range(4)]
    mixed = [replace(part, cls=str(i)) for i, part in enumerate(same)]
    plain = waiting_time([replace(part, state=STATE) for part in same]).var
    certain = replace(STATE, workload=replace(STATE.workload, mean_var=0.0))
    own = waiting_time([replace(part, state=certain) for part in same]).var
    expected = (200 * STATE.request_s * 20 / STATE.workload.output.mean) ** 2
    assert waiting_time(same).var - own == pytest.approx(expected)
    assert waiting_time(mixed).var - own == pytest.approx(expected / 4)
    assert plain < waiting_time(mixed).var


def test_the_uncertainty_of_the_speed_grows_with_the_work_before() -> None:
    doubtful = replace(STATE, uncertainty=0.1)
    near, far = (
        waiting_time([QueuePart(state=doubtful, requests=n)]).var
        - waiting_time([QueuePart(state=STATE, requests=n)]).var
        for n in (10, 100)
    )
    assert far == pytest.approx(100 * near)
    assert math.sqrt(far) == pytest.approx(0.1 * 100 * STATE.request_s)


def test_a_model_change_waits_for_the_batch_to_end_and_starts_with_an_empty_one() -> None:
    front = QueuePart(state=STATE, requests=100, cls="a")
    after = QueuePart(state=STATE, requests=1, cls="b", swap=SWAP, emptying=Normal(20.0, 4.0))
    wait = waiting_time([front, after])
    assert wait.mean == pytest.approx(100 * STATE.request_s + 20 + 5)
    assert wait.var == pytest.approx(waiting_time([front]).var + 1 + 4)


@given(parts, parts, free)
def test_more_ahead_never_shortens_the_wait(
    some: list[QueuePart], more: list[QueuePart], places: float
) -> None:
    before = waiting_time(some, free=places)
    after = waiting_time([*some, *more], free=places)
    assert after.mean >= before.mean - 1e-9
    assert after.var >= before.var - 1e-9


@given(parts, st.integers(0, 7), st.integers(1, 50), free)
def test_a_longer_group_ahead_never_shortens_the_wait(
    queue: list[QueuePart], which: int, more: int, places: float
) -> None:
    longer = [
        replace(part, requests=part.requests + more) if i == which else part for i, part in enumerate(queue)
    ]
    assert waiting_time(longer, free=places).mean >= waiting_time(queue, free=places).mean - 1e-9


@given(st.permutations([10.0, 40.0, 70.0]), free)
def test_the_order_of_groups_of_one_class_ahead_does_not_matter(sizes: list[float], places: float) -> None:
    queue = [QueuePart(state=STATE, requests=n, cls="a") for n in sizes]
    whole = waiting_time([QueuePart(state=STATE, requests=120, cls="a")], free=places)
    split = waiting_time(queue, free=places)
    assert (split.mean, split.var) == pytest.approx((whole.mean, whole.var))


@given(st.floats(0, 16), st.floats(0, 16), st.integers(1, 300))
def test_more_free_places_never_lengthen_the_wait(one: float, other: float, requests: int) -> None:
    part = QueuePart(state=STATE, requests=requests)
    few, many = sorted([one, other])
    assert waiting_time([part], free=many).mean <= waiting_time([part], free=few).mean + 1e-9


@pytest.mark.parametrize(("places", "requests"), [(16, 200), (64, 400), (64, 20), (8, 1)])
def test_the_end_of_a_batch_is_that_of_many_trials(places: int, requests: int) -> None:
    start_s, end_s = serve(draw(np.random.default_rng(9), 1500, requests), places)
    over = end_s.max(axis=1) - start_s[:, -1]
    _, emptying = emptying_times(state_of(LENGTHS, places), LENGTHS, requests=requests, cap=CAP)
    assert emptying.mean == pytest.approx(over.mean(), rel=0.04)
    assert math.sqrt(emptying.var) == pytest.approx(over.std(), rel=0.15)


def test_a_batch_that_runs_empty_speeds_up() -> None:
    quick = replace(STATE, alone_s=STATE.iteration_s / 3)
    followed, alone = emptying_times(quick, LENGTHS, cap=CAP)
    assert alone.mean < 0.8 * followed.mean


@given(st.integers(1, 64), st.integers(1, 64))
def test_the_longest_of_more_requests_is_longer(one: int, other: int) -> None:
    few, many = sorted([one, other])
    ends = [emptying_times(state(64), LENGTHS, requests=n, cap=CAP)[1].mean for n in (few, many)]
    assert ends[0] <= ends[1] + 1e-9


def state(places: int, lengths: LengthPredictive = LENGTHS) -> SteadyState:
    return state_of(lengths, places)


def test_prompts_of_unequal_length_spread_the_wait() -> None:
    even = replace(STATE, prompt_s=0.1, workload=replace(STATE.workload, prompt_tokens=500.0))
    uneven = replace(even, workload=replace(even.workload, prompt_var=250_000.0))
    (flat,), (spread,) = ([QueuePart(state=state, requests=40)] for state in (even, uneven))
    extra = waiting_time([spread]).var - waiting_time([flat]).var
    assert extra == pytest.approx(40 * 0.1**2), "a coefficient of variation of 1 on 40 prompts"


@given(st.floats(0, 1), st.floats(0, 16), st.integers(1, 400))
def test_the_times_of_one_class_are_those_of_its_queue(kv_share: float, places: float, rank: int) -> None:
    state = replace(
        STATE, kv_share=kv_share, prompt_s=0.1 * STATE.request_s, first_prompts_saving_s=0.3 * STATE.request_s
    )
    wait = waiting_time([QueuePart(state=state, requests=rank)], free=places)
    behind = float(waiting_times(state, [rank], free=places)[0])
    assert wait.mean == pytest.approx(behind + state.prompt_s)


def test_contexts_that_are_short_at_first_shorten_the_wait_by_what_reading_them_takes() -> None:
    reading = replace(STATE, kv_share=0.5)
    assert reading.age_transient_share == pytest.approx(0.5), "there are no prompts"
    full = waiting_times(STATE, [100, 1000]) - waiting_times(reading, [100, 1000])
    assert np.all(full == 0)
    saved_s = waiting_times(STATE, [17, 30, 1000, 2000], free=math.inf) - waiting_times(
        reading, [17, 30, 1000, 2000], free=math.inf
    )
    assert 0 < saved_s[0] < saved_s[1] < saved_s[2]
    assert saved_s[2:] == pytest.approx(0.5 * STATE.age_transient_s, rel=0.01)

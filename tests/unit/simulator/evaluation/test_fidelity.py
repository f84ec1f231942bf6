"""Errors of the engine model against logs whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.builtin import unmeasured_profile
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.evaluation.fidelity import compare, fidelity, is_saturated, saturated_part
from qlm.simulator.evaluation.replay import replay
from qlm.simulator.evaluation.request_log import RequestLog
from qlm.simulator.workload.trace import Labels
from support.request_logs import drawn_log, log_of, served

LLAMA = replace(
    unmeasured_profile("llama-3-8b", "A100", context_tokens=8192),
    iteration=IterationTime(
        host_ms=2.0,
        linear_ms=((1, 9.0), (128, 10.0), (2048, 150.0)),
        kv_ms=8e-5,
        sequence_ms=0.03,
        square_ms=1e-6,
    ),
    seqs_max=32,
    kv_tokens=400_000,
    batched_tokens_max=512,
    async_scheduling=False,
)
"""A batch of 32 serves some 15 requests of `drawn_log` per second."""
SLOWER = replace(LLAMA, iteration=LLAMA.iteration.scaled(1.1))
SMALL = replace(LLAMA, kv_tokens=1040, seqs_max=4, batched_tokens_max=64)
LIGHT_RPS, OVERLOAD_RPS = 0.5, 40.0


@pytest.mark.parametrize("rate_rps", [LIGHT_RPS, 7.0, OVERLOAD_RPS])
def test_the_log_of_the_model_itself_has_no_errors(rate_rps: float) -> None:
    log = served(drawn_log(150, rate_rps), LLAMA)
    (found,) = fidelity(log, LLAMA)
    assert found.tpot is not None
    for errors in (found.ttft, found.tpot, found.e2e):
        assert set(errors.error.values()) == {0.0}
        assert errors.each == 0.0
    assert (found.log_rps, found.rate_error) == ((None, None) if rate_rps < 10 else (found.model_rps, 0.0))


_ROWS = st.lists(
    st.tuples(st.integers(0, 400_000_000), st.integers(1, 500), st.integers(1, 500)), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(_ROWS, st.sampled_from([LLAMA, SMALL]))
def test_a_replay_equals_single_iterations(rows: list[tuple[int, int, int]], profile: Profile) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    start = rows[0][0]
    log = served(log_of([(at - start, prompt, output) for at, prompt, output in rows]), profile)
    again = replay(log, profile)
    assert again.first_token_ns.tolist() == log.first_token_ns.tolist()
    assert again.end_ns.tolist() == log.end_ns.tolist()


def test_a_tenth_slower_is_a_tenth_longer_at_light_load() -> None:
    log = served(drawn_log(200, LIGHT_RPS), LLAMA)
    found = compare("light", log, replay(log, SLOWER))
    assert found.tpot is not None
    for errors in (found.e2e, found.tpot):
        assert errors.error["mean"] == pytest.approx(0.10, abs=0.015)
    # A first token also waits for the end of the iteration during which its request arrived.
    assert found.ttft.error["mean"] == pytest.approx(0.10, abs=0.04)
    assert found.e2e.each == pytest.approx(0.10, abs=0.015)
    assert (found.log_rps, found.model_rps, found.rate_error) == (None, None, None)


def test_a_tenth_slower_serves_a_tenth_less_while_saturated() -> None:
    log = served(drawn_log(600, OVERLOAD_RPS), LLAMA)
    found = compare("overload", log, replay(log, SLOWER))
    assert found.rate_error == pytest.approx(1 / 1.1 - 1, abs=0.005)
    fast = compare("overload", log, replay(log, replace(LLAMA, iteration=LLAMA.iteration.scaled(0.9))))
    assert fast.rate_error == pytest.approx(1 / 0.9 - 1, abs=0.01)


def test_the_saturated_part_leaves_out_the_batch_that_fills_and_that_empties() -> None:
    log = served(drawn_log(400, OVERLOAD_RPS), LLAMA)
    part = saturated_part(log)
    assert part is not None
    start_ns, end_ns = part
    for at_ns in range(start_ns, end_ns, (end_ns - start_ns) // 50):
        running = ((log.first_token_ns <= at_ns) & (log.end_ns > at_ns)).sum()
        assert running >= 0.8 * LLAMA.seqs_max
    assert end_ns < log.end_ns.max()
    # What it serves meanwhile is what it would serve of an endless backlog: the same rate in both halves.
    middle_ns = (start_ns + end_ns) // 2
    halves = [
        ((log.end_ns > a) & (log.end_ns <= b)).sum() for a, b in ((start_ns, middle_ns), (middle_ns, end_ns))
    ]
    assert halves[0] == pytest.approx(halves[1], rel=0.15)


def test_a_batch_that_holds_all_is_not_saturated() -> None:
    assert not is_saturated(log_of([(0, 10, 10)]))
    assert not is_saturated(served(log_of([(0, 100, 50)] * 5), LLAMA))
    assert is_saturated(served(log_of([(0, 100, 50)] * 200), LLAMA))


def test_a_model_that_alone_saturates_is_reported() -> None:
    log = served(drawn_log(600, 7.0), LLAMA)
    slow = replace(LLAMA, iteration=LLAMA.iteration.scaled(3.0))
    found = compare("knee", log, replay(log, slow))
    assert found.log_rps is None
    assert found.model_rps is not None


def test_levels_are_served_by_engines_of_their_own() -> None:
    light, heavy = drawn_log(50, LIGHT_RPS), drawn_log(50, OVERLOAD_RPS, seed=2)
    rows = [
        (int(at), int(prompt), int(output))
        for each in (light, heavy)
        for at, prompt, output in zip(each.arrival_ns, each.prompt_tokens, each.output_tokens, strict=True)
    ]
    order = sorted(range(100), key=lambda number: rows[number][0])
    both = log_of([rows[number] for number in order])
    labels = Labels.of(["light" if number < 50 else "heavy" for number in order])
    found = {each.level: each for each in fidelity(replace(both, level=labels), LLAMA)}
    assert found["light"].e2e.model_s == compare("", light, replay(light, LLAMA)).e2e.model_s
    assert found["heavy"].e2e.model_s == compare("", heavy, replay(heavy, LLAMA)).e2e.model_s


def test_prompts_that_share_a_prefix_skip_its_whole_blocks() -> None:
    rows = [(number * 10**10, 1000, 5) for number in range(3)]
    log = replace(log_of(rows), prefix=np.array([4, 4, 4]), prefix_tokens=np.array([1000, 700, 900]))
    found = compare("", log, replay(log, LLAMA))
    assert found.shared_tokens == 700 + 900
    blocks = LLAMA.block_tokens
    assert found.hit_tokens == 700 // blocks * blocks + 900 // blocks * blocks
    assert replay(log_of(rows), LLAMA).cached_tokens.tolist() == [0, 0, 0]


def test_a_request_that_the_cache_cannot_hold_is_one_error_with_its_line() -> None:
    log: RequestLog = log_of([(0, 10, 10), (5, 900, 200)])
    with pytest.raises(InvalidValueError, match=r"drawn:3: prompt_tokens \+ output_tokens is 1100"):
        replay(log, SMALL)


def test_answers_of_one_token_have_no_pace() -> None:
    log = served(log_of([(0, 10, 1), (5, 10, 1)]), LLAMA)
    (found,) = fidelity(log, LLAMA)
    assert found.tpot is None


def test_a_log_with_zeros_has_no_relative_error() -> None:
    log = log_of([(0, 10, 2)])
    found = compare("", log, replay(log, LLAMA))
    assert found.ttft.error["mean"] is None
    assert found.ttft.each is None


def test_time_outside_of_iterations_delays_every_token_and_keeps_no_slot() -> None:
    log = served(drawn_log(150, OVERLOAD_RPS), LLAMA)
    sources = {**LLAMA.sources, "request_ms": LLAMA.sources["kv_tokens"]}
    far = replace(LLAMA, request_ms=7.5, sources=sources)
    near_replay, far_replay = replay(log, LLAMA), replay(log, far)
    assert (far_replay.first_token_ns - near_replay.first_token_ns == 7_500_000).all()
    assert (far_replay.end_ns - near_replay.end_ns == 7_500_000).all()

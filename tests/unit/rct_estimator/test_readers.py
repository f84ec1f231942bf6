"""How many requests a batch may hold that keeps up with its readers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qlm.domain.ids import ModelId
from qlm.rct_estimator.cluster.batch_tails import BatchTails
from qlm.rct_estimator.cluster.service_table import ClassOnKind, response_s
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.output_length import typical_prior
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.readers import SHARE, paced_state, reader_bound, time_behind_s
from qlm.rct_estimator.throughput import steady_state
from qlm.rct_estimator.workload import Workload

A10, A100 = (find_profile(builtin_profiles(), ModelId("llama-3-8b"), kind) for kind in ("A10", "A100"))
WORK = Workload(prompt_tokens=230.0, output=Normal(190.0, 180.0**2))

paces = st.floats(0.5, 60.0)


def batch_supply(profile: Profile, workload: Workload, batch: float) -> float:
    """Return the output tokens per second that each member of a batch of that size gets."""
    return 1 / steady_state(profile, workload, batch=batch).iteration_s


@settings(max_examples=20)
@given(paces, st.sampled_from([A10, A100]), st.floats(10.0, 2000.0))
def test_the_bound_is_the_largest_batch_that_keeps_up(pace: float, profile: Profile, prompt: float) -> None:
    work = replace(WORK, prompt_tokens=prompt)
    bound = reader_bound(profile, work, pace)
    full = steady_state(profile, work).batch
    if bound is None:
        assert batch_supply(profile, work, full) * SHARE >= pace
    elif bound == 0:
        assert batch_supply(profile, work, 1.0) * SHARE < pace
    else:
        assert batch_supply(profile, work, bound) * SHARE >= pace
        assert bound + 1 > full or batch_supply(profile, work, bound + 1) * SHARE < pace


def test_supply_is_the_inverse_of_an_iteration_with_the_prompts_of_those_that_follow() -> None:
    # 10 ms and 0.1 ms for each token of a batch: eight decodes, and 8 / 100 prompts of 50 tokens.
    profile = replace(
        A100,
        iteration=IterationTime(host_ms=0.0, linear_ms=((1.0, 10.1), (2001.0, 210.1)), kv_ms=0.0),
        async_scheduling=False,
    )
    work = Workload(prompt_tokens=50.0, output=Normal(100.0, 0.0))
    prompts_ms = 8 / 100 * 50 * 0.1
    assert 1000 / batch_supply(profile, work, 8.0) == pytest.approx(10 + 0.8 + prompts_ms, rel=0.05)


def test_a_faster_reader_leaves_room_for_fewer_and_a_slower_machine_too() -> None:
    sizes = [paced_state(A100, WORK, pace).batch for pace in (None, 12.0, 20.0, 40.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]
    assert paced_state(A10, WORK, 20.0).batch < paced_state(A100, WORK, 20.0).batch


def test_a_pace_that_no_batch_keeps_bounds_nothing() -> None:
    assert reader_bound(A10, WORK, 1000.0) == 0
    assert paced_state(A10, WORK, 1000.0) == steady_state(A10, WORK)


def test_without_readers_the_batch_is_full() -> None:
    assert paced_state(A100, WORK, None) == steady_state(A100, WORK)


def test_an_answer_falls_behind_by_what_each_token_takes_too_long() -> None:
    behind_s = time_behind_s(np.array([0.0, 10.0, 100.0]), 0.06, 20.0)
    assert behind_s.tolist() == pytest.approx([0.0, 0.1, 1.0])
    assert not time_behind_s(np.array([100.0]), 0.04, 20.0).any()
    assert not time_behind_s(np.array([100.0]), 0.06, None).any()


def test_a_tail_of_readers_includes_what_they_fall_behind() -> None:
    lengths = typical_prior(None).predictive()
    full = ClassOnKind(state=steady_state(A10, WORK), lengths=lengths, cap=2000.0)
    too_fast = replace(full, tokens_per_s=1000.0)
    first_s, read_s = (response_s(each, first_token=True) for each in (full, too_fast))
    assert np.all(first_s == full.state.prefill_s)
    assert np.all(np.diff(read_s) > 0)
    assert read_s.mean() > first_s.mean() + 1.0
    assert (
        BatchTails(A10, too_fast, first_token=True).at(1e9).mean
        > BatchTails(A10, full, first_token=True).at(1e9).mean + 1.0
    )
    # The whole answer is as long for readers as for all others.
    assert np.all(response_s(full, first_token=False) == response_s(too_fast, first_token=False))

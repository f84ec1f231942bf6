"""Tails by the size of the batch."""

import pytest

from qlm.domain.ids import ModelId
from qlm.rct_estimator.cluster.batch_tails import STEP, BatchTails
from qlm.rct_estimator.cluster.service_table import ClassOnKind, response_s
from qlm.rct_estimator.length_predictive import LengthPredictive
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.output_length import typical_prior
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.throughput import steady_state
from qlm.rct_estimator.workload import Workload

PROFILE = find_profile(builtin_profiles(), ModelId("llama-3-8b"), "A100")
WORK = Workload(prompt_tokens=200.0, output=Normal(150.0, 150.0**2))


def lengths() -> LengthPredictive:
    return typical_prior(None).predictive()


def tails(*, first_token: bool) -> BatchTails:
    full = ClassOnKind(state=steady_state(PROFILE, WORK), lengths=lengths(), cap=2000.0)
    return BatchTails(PROFILE, full, first_token=first_token)


@pytest.mark.parametrize("first_token", [False, True])
def test_a_small_batch_answers_sooner(first_token: bool) -> None:
    of = tails(first_token=first_token)
    means = [of.at(batch).mean for batch in (1, 2, 8, 30, 100)]
    assert means == sorted(means)
    assert means[0] < 0.8 * means[-1]


def test_at_a_size_of_its_grid_it_is_the_steady_state() -> None:
    state = steady_state(PROFILE, WORK, batch=STEP**4)
    values_s = response_s(ClassOnKind(state=state, lengths=lengths(), cap=2000.0), first_token=False)
    expected_s = float(values_s.mean()) + state.queue_s
    assert tails(first_token=False).at(STEP**4).mean == pytest.approx(expected_s)


def test_between_two_sizes_it_is_between_and_above_the_full_batch_it_is_full() -> None:
    of = tails(first_token=False)
    low, middle, high = (of.at(batch).mean for batch in (STEP**4, STEP**4.5, STEP**5))
    assert low < middle < high
    assert of.at(1e9) == of.at(steady_state(PROFILE, WORK).batch)


def test_prompts_before_its_own_count_only_as_far_as_an_engine_is_given_them() -> None:
    prompts = Workload(prompt_tokens=2000.0, output=Normal(20.0, 20.0**2))
    state = steady_state(PROFILE, prompts)
    full = ClassOnKind(state=state, lengths=lengths(), cap=2000.0)
    of = BatchTails(PROFILE, full, first_token=True)
    whole, bounded = of.at(state.batch), of.at(state.batch, 0.5)
    assert whole.mean - bounded.mean == pytest.approx(state.prompts_before_s - 0.5)
    assert of.at(1.0, 0.5) == of.at(1.0), "nothing is before it"

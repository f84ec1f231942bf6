import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.domain.outcome import Outcome
from qlm.rct_estimator.length_predictive import EDGES, TOKENS_MAX
from qlm.rct_estimator.output_length import (
    OutputLengths,
    observe_all,
    pooled_prior,
    posterior,
    typical_prior,
)
from qlm.store.core.length_stats import LengthStats
from support.batch_slots import draw

tokens = st.integers(1, 4000)
seen = st.lists(st.tuples(tokens, st.booleans()), max_size=60)


def learned(answers: list[tuple[int, bool]], lengths: OutputLengths | None = None) -> OutputLengths:
    known = typical_prior() if lengths is None else lengths
    for produced, cut_off in answers:
        known = observe_all(known, [produced], [cut_off])
    return known


def complete(values: np.ndarray) -> OutputLengths:
    return observe_all(typical_prior(), values, np.zeros(len(values), dtype=bool))


@pytest.mark.parametrize("shape", ["log-normal", "two humps", "always the same"])
def test_mean_variance_and_quantiles_become_those_of_any_population(shape: str) -> None:
    rng = np.random.default_rng(1)
    humps = np.where(rng.random(20_000) < 0.5, rng.normal(40, 8, 20_000), rng.normal(900, 60, 20_000))
    values = {
        "log-normal": draw(rng, 20_000),
        "two humps": np.maximum(1, humps.round()),
        "always the same": np.full(20_000, 300.0),
    }[shape]
    predictive = complete(values).predictive()
    length = predictive.length()
    assert length.mean == pytest.approx(values.mean(), rel=0.005)
    assert math.sqrt(length.var) == pytest.approx(values.std(), rel=0.02, abs=0.05 * values.mean())
    for share in (0.1, 0.25, 0.75, 0.9):
        assert predictive.quantile(share) == pytest.approx(np.quantile(values, share), rel=0.15)


def test_answers_cut_off_by_their_limits_do_not_hide_the_true_lengths() -> None:
    rng = np.random.default_rng(2)
    values, limits = draw(rng, 20_000), rng.choice([64, 128, 256, 2048], 20_000)
    produced, cut = np.minimum(values, limits), values > limits
    honest = observe_all(typical_prior(), produced, cut).predictive().length().mean
    naive = complete(produced).predictive().length().mean
    assert honest == pytest.approx(values.mean(), rel=0.03)
    assert naive < 0.75 * values.mean()


def test_a_class_that_always_runs_into_its_limit_is_expected_there_again() -> None:
    predictive = observe_all(typical_prior(512), np.full(200, 512), np.ones(200, dtype=bool)).predictive()
    assert predictive.length(512).mean == pytest.approx(512, rel=0.02)
    assert predictive.length(512).mean <= 512


def test_remaining_length_agrees_with_the_answers_that_came_as_far() -> None:
    values = draw(np.random.default_rng(3), 50_000)
    predictive = complete(values).predictive()
    for produced in (0, 40, 150, 500):
        left = np.minimum(values[values > produced], 800) - produced
        mean, var = predictive.remaining([produced], 800)
        assert mean[0] == pytest.approx(left.mean(), rel=0.03)
        assert math.sqrt(var[0]) == pytest.approx(left.std(), rel=0.05)


def test_the_uncertainty_of_the_mean_covers_the_true_mean() -> None:
    rng = np.random.default_rng(4)
    population = draw(rng, 100_000)
    for samples in (10, 40, 160):
        inside = 0
        for _ in range(200):
            predictive = complete(rng.choice(population, samples)).predictive()
            error = predictive.length(1024).mean - population.mean()
            inside += abs(error) < 1.645 * math.sqrt(predictive.mean_var(1024))
        assert inside / 200 >= 0.85


@given(tokens, st.integers(1, 20), st.integers(2, 10))
def test_fewer_answers_leave_more_uncertainty(produced: int, few: int, times: int) -> None:
    rng = np.random.default_rng(produced)
    values = draw(rng, few, median=produced)
    doubts = [
        complete(np.tile(values, n)).predictive().mean_var(TOKENS_MAX)
        / complete(np.tile(values, n)).predictive().length().var
        for n in (1, times)
    ]
    assert doubts[0] > doubts[1]


@given(seen, seen)
def test_the_order_of_answers_does_not_matter_and_batches_neither(
    some: list[tuple[int, bool]], more: list[tuple[int, bool]]
) -> None:
    answers = some + more
    one = learned(answers).predictive()
    turned = learned(answers[::-1]).predictive()
    at_once = observe_all(typical_prior(), [t for t, _ in answers], [c for _, c in answers]).predictive()
    np.testing.assert_allclose(one.survival, turned.survival, atol=1e-12)
    np.testing.assert_allclose(one.survival, at_once.survival, atol=1e-12)
    np.testing.assert_allclose(one.area, at_once.area, rtol=1e-9)


@given(seen, st.floats(1, 5000), st.floats(0, 4000))
def test_moments_are_within_their_bounds(
    answers: list[tuple[int, bool]], cap: float, produced: float
) -> None:
    predictive = learned(answers).predictive()
    assert np.all(np.diff(predictive.survival) <= 1e-12)
    mean, var = predictive.remaining([produced], cap)
    assert 0 <= mean[0] <= max(0.0, cap - produced)
    assert 0 <= var[0] <= cap**2
    assert predictive.mean_var(cap) >= 0
    assert predictive.length(cap).mean <= predictive.length(cap * 2).mean + 1e-9


@given(seen, st.floats(0, 1), st.floats(0, 1), st.floats(1, 3000))
def test_quantiles_rise_and_stay_within_the_limit(
    answers: list[tuple[int, bool]], one: float, other: float, cap: float
) -> None:
    predictive = learned(answers).predictive()
    low, high = predictive.quantile(sorted([one, other]), cap)
    assert 0 <= low <= high <= cap


@given(seen, st.floats(2, 4000))
def test_strata_have_the_mean_of_the_distribution(answers: list[tuple[int, bool]], cap: float) -> None:
    predictive = learned(answers).predictive()
    strata = predictive.strata(8, cap)
    assert strata.mean() == pytest.approx(predictive.length(cap).mean)
    assert np.all(np.diff(strata) >= -1e-9)
    with pytest.raises(ValueError, match="read-only"):
        strata[0] = 0.0


def test_a_pooled_prior_starts_from_what_others_did_and_gives_way() -> None:
    rng = np.random.default_rng(6)
    others = complete(draw(rng, 5000, median=60))
    fresh = pooled_prior(others)
    assert fresh.predictive().length().mean == pytest.approx(others.predictive().length().mean, rel=1e-6)
    assert fresh.predictive().mean_var() > 50 * others.predictive().mean_var()
    own = draw(rng, 400, median=300)
    moved = observe_all(fresh, own, np.zeros(400, dtype=bool)).predictive().length().mean
    assert moved == pytest.approx(own.mean(), rel=0.02)


def test_the_prior_follows_the_limit_that_clients_set_but_not_all_the_way() -> None:
    short, none, long = (typical_prior(n).predictive() for n in (16, None, 8192))
    medians = [float(p.quantile(0.5)) for p in (short, none, long)]
    assert medians == pytest.approx([8, 200, math.sqrt(200 * 4096)], rel=0.05)


@pytest.mark.parametrize("wrong", [0, -1, math.nan, math.inf])
def test_lengths_that_cannot_be_are_refused(wrong: float) -> None:
    with pytest.raises(InvalidValueError, match="positive"):
        observe_all(typical_prior(), [wrong], [False])


def test_bins_are_narrow_enough_and_cover_long_answers() -> None:
    assert EDGES[-1] == 131072
    assert np.all(EDGES[9:] / EDGES[8:-1] <= 1.26)


@given(
    st.lists(st.tuples(st.integers(1, 131_072), st.sampled_from((Outcome.STOP, Outcome.LENGTH))), max_size=30)
)
def test_counted_answers_teach_what_single_ones_do(answers: list[tuple[int, Outcome]]) -> None:
    stats = LengthStats()
    for tokens, outcome in answers:
        stats.count(tokens, outcome, 1000)
    prior = typical_prior(512)
    counted = posterior(stats.value, prior)
    single = observe_all(prior, [n for n, _ in answers], [end is Outcome.LENGTH for _, end in answers])
    assert np.allclose(counted.seen.ended, single.seen.ended)
    assert np.allclose(counted.seen.tokens, single.seen.tokens)
    assert np.allclose(counted.seen.outlived, single.seen.outlived)

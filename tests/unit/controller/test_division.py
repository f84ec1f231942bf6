"""Division of classes by prompt length: where lengths are of several kinds, and only there."""

import numpy as np
import pytest

from qlm.controller.core.division import PromptLengths, is_worth_keeping, new_threshold
from qlm.domain.length_histogram import LENGTH_BINS, LENGTH_EDGES, length_bin
from qlm.rct_estimator.length_predictive import FloatArray

CENTRES = np.sqrt((np.array(LENGTH_EDGES[:-1]) + 1.0) * np.array(LENGTH_EDGES[1:]))

SERVICE_S = 0.2 + CENTRES / 2000
"""A short answer, and a prompt at 2 000 tokens per second."""


def lengths(tokens: FloatArray, service_s: FloatArray = SERVICE_S) -> PromptLengths:
    weights, _ = np.histogram(np.ceil(tokens.clip(1, 100_000)) - 0.5, LENGTH_EDGES)
    return PromptLengths(weights.astype(np.float64), service_s)


def lognormal(seed: int, median: float, sigma: float, requests: int) -> FloatArray:
    drawn = np.random.default_rng(seed).lognormal(np.log(median), sigma, requests)
    return np.asarray(drawn, dtype=np.float64)


def mixed(seed: int, requests: int, share: float) -> FloatArray:
    """Prompts of about 300 tokens, and a share of them of about 30 000."""
    long = np.random.default_rng(seed + 1000).random(requests) < share
    return np.where(long, lognormal(seed + 2000, 30_000, 0.1, requests), lognormal(seed, 300, 0.8, requests))


@pytest.mark.parametrize("sigma", [0.3, 0.6, 1.0, 1.5])
@pytest.mark.parametrize("requests", [100, 1000, 10_000])
def test_lengths_of_one_kind_are_not_divided(sigma: float, requests: int) -> None:
    """However wide they are spread, and however few are known."""
    divided = [
        seed
        for seed in range(100)
        if new_threshold(lengths(lognormal(seed, 600, sigma, requests)), ()) is not None
    ]
    assert len(divided) <= 5


def test_a_hundredth_of_very_long_prompts_is_divided_off() -> None:
    for seed in range(50):
        at = new_threshold(lengths(mixed(seed, 2000, 0.01)), ())
        assert at is not None and 2000 < at < 25_000


def test_two_kinds_that_cost_the_same_are_not_divided() -> None:
    """Answers take all the time: the waits of others do not depend on the prompt."""
    assert new_threshold(lengths(mixed(1, 2000, 0.1), np.ones(LENGTH_BINS)), ()) is None


def test_three_kinds_are_divided_twice_and_no_fourth_is() -> None:
    rng = np.random.default_rng(5)
    kinds = np.array([60.0, 2400.0, 90_000.0])[rng.choice(3, 4000, p=[0.9, 0.08, 0.02])]
    drawn = lengths(kinds * rng.lognormal(0, 0.15, 4000), CENTRES)
    first = new_threshold(drawn, ())
    assert first is not None
    second = new_threshold(drawn, (first,))
    assert second is not None
    assert 60 < min(first, second) < 2400 < max(first, second) < 90_000
    assert new_threshold(drawn, tuple(sorted((first, second)))) is None


def test_a_threshold_in_use_stays_where_a_new_one_would_not_be_drawn() -> None:
    rare = lengths(np.concatenate([lognormal(1, 300, 0.8, 1000), [30_000.0, 31_000.0]]))
    at = LENGTH_EDGES[length_bin(6000) + 1]
    assert new_threshold(rare, ()) is None
    assert is_worth_keeping(rare, at, (at,))
    assert not is_worth_keeping(lengths(lognormal(1, 300, 0.8, 1000)), at, (at,))

"""Arrivals and lengths: rising times, the rate and the spread that were wanted for."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.simulator.workload.arrivals import (
    ARRIVAL_MAX_S,
    REQUESTS_MAX,
    Arrivals,
    ArrivalSpan,
    Bursts,
    Gamma,
    OnOff,
    Poisson,
    Ramp,
    nanoseconds,
)
from qlm.simulator.workload.lengths import Constant, Lengths, LogNormal, Uniform

RATES = st.floats(0.1, 100)
COUNTS = st.integers(1, 300)
DURATIONS = st.floats(0.5, 50)


@st.composite
def generators(draw: st.DrawFn) -> Arrivals:
    span = draw(
        st.one_of(
            st.builds(ArrivalSpan, requests=COUNTS, start_s=st.floats(0, 100)),
            st.builds(ArrivalSpan, duration_s=DURATIONS, start_s=st.floats(0, 100)),
        )
    )
    rate = draw(RATES)
    made: list[Arrivals] = [
        Poisson(rate_rps=rate, span=span),
        Gamma(rate_rps=rate, cv=draw(st.floats(0.05, 10)), span=span),
        OnOff(rate_rps=rate, on_s=draw(DURATIONS), off_s=draw(DURATIONS), span=span),
        Ramp(from_rps=rate, to_rps=draw(st.floats(0, 100)), duration_s=draw(DURATIONS)),
        Ramp(from_rps=0, to_rps=rate, duration_s=draw(DURATIONS)),
        Bursts(count=draw(COUNTS), every_s=draw(st.floats(0, 10)), bursts=draw(st.integers(1, 5))),
    ]
    return draw(st.sampled_from(made))


@given(generators(), st.integers(0, 2**32), st.floats(0.1, 10))
def test_times_are_finite_and_never_fall(arrivals: Arrivals, seed: int, load: float) -> None:
    times_s = arrivals.times_s(np.random.default_rng(seed), load)
    assert np.isfinite(times_s).all()
    assert (nanoseconds(times_s) >= 0).all()
    assert (np.diff(nanoseconds(times_s)) >= 0).all()


@given(generators(), st.integers(0, 2**32))
def test_equal_seeds_give_equal_times(arrivals: Arrivals, seed: int) -> None:
    first, again = (arrivals.times_s(np.random.default_rng(seed), 1.0) for _ in range(2))
    assert first.tolist() == again.tolist()


@pytest.mark.parametrize("load", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("cv", [None, 0.3, 1.0, 4.0])
def test_rate_and_spread_of_gaps_are_as_asked(cv: float | None, load: float) -> None:
    span = ArrivalSpan(requests=100_000)
    rng = np.random.default_rng(7)
    poisson = Poisson(rate_rps=5, span=span)
    arrivals = poisson if cv is None else Gamma(rate_rps=5, cv=cv, span=span)
    gaps = np.diff(arrivals.times_s(rng, load))
    assert 1 / gaps.mean() == pytest.approx(5 * load, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv or 1.0, rel=0.05)


@pytest.mark.parametrize(
    "arrivals",
    [
        Poisson(rate_rps=50, span=ArrivalSpan(duration_s=400, start_s=10)),
        Gamma(rate_rps=50, cv=2, span=ArrivalSpan(duration_s=400, start_s=10)),
        Ramp(from_rps=0, to_rps=100, duration_s=400, start_s=10),
        Ramp(from_rps=80, to_rps=20, duration_s=400, start_s=10),
        OnOff(rate_rps=100, on_s=20, off_s=20, span=ArrivalSpan(duration_s=400, start_s=10)),
    ],
)
def test_a_duration_bounds_times_and_gives_the_mean_number(arrivals: Arrivals) -> None:
    times_s = arrivals.times_s(np.random.default_rng(3), 1.0)
    assert times_s[0] >= 10
    assert times_s[-1] <= 410
    assert len(times_s) == pytest.approx(20_000, rel=0.05)
    twice = arrivals.times_s(np.random.default_rng(4), 2.0)
    assert len(twice) == pytest.approx(40_000, rel=0.05)


def test_a_ramp_comes_at_the_rate_of_the_moment() -> None:
    ramp = Ramp(from_rps=10, to_rps=190, duration_s=100)
    times_s = ramp.times_s(np.random.default_rng(5), 1.0)
    counts, _ = np.histogram(times_s, bins=10, range=(0, 100))
    for index, count in enumerate(counts.tolist()):
        expected = 10 * (10 + 18 * (index + 0.5))
        assert abs(count - expected) < 5 * math.sqrt(expected)


def test_nothing_comes_while_it_is_off() -> None:
    on_off = OnOff(rate_rps=100, on_s=2, off_s=3, span=ArrivalSpan(requests=5000, start_s=1))
    phases = (on_off.times_s(np.random.default_rng(6), 1.0) - 1) % 5
    assert phases.max() <= 2 + 1e-6


def test_bursts_come_at_once_and_closer_under_load() -> None:
    bursts = Bursts(count=3, every_s=10, bursts=2, start_s=1)
    rng = np.random.default_rng(0)
    assert bursts.times_s(rng, 1.0).tolist() == [1, 1, 1, 11, 11, 11]
    assert bursts.times_s(rng, 2.0).tolist() == [1, 1, 1, 6, 6, 6]


@pytest.mark.parametrize(
    "arrivals",
    [
        Poisson(rate_rps=1e6, span=ArrivalSpan(duration_s=1e6)),
        Gamma(rate_rps=1e6, cv=1, span=ArrivalSpan(duration_s=1e6)),
        Ramp(from_rps=1e6, to_rps=1e6, duration_s=1e6),
        Bursts(count=REQUESTS_MAX, bursts=2),
    ],
)
def test_more_requests_than_fit_memory_are_refused(arrivals: Arrivals) -> None:
    with pytest.raises(InvalidValueError, match=f"at most {REQUESTS_MAX}"):
        arrivals.times_s(np.random.default_rng(0), 1.0)


@pytest.mark.parametrize("late_s", [ARRIVAL_MAX_S * 1.001, 1e300, math.inf, math.nan])
def test_times_beyond_ten_years_are_refused(late_s: float) -> None:
    assert nanoseconds(np.array([0.0, ARRIVAL_MAX_S])).tolist() == [0, round(ARRIVAL_MAX_S) * 10**9]
    with pytest.raises(InvalidValueError, match=r"a request at .* s'; expected none after 315360000 s"):
        nanoseconds(np.array([0.0, late_s]))


@pytest.mark.parametrize("given", [{}, {"requests": 1, "duration_s": 1.0}])
def test_an_extent_is_a_number_or_a_time(given: dict[str, float]) -> None:
    with pytest.raises(InvalidValueError, match="exactly one of requests and duration_s"):
        ArrivalSpan(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lengths", "mean", "low", "high"),
    [
        (Constant(7), 7, 7, 7),
        (Uniform(low=10, high=20), 15, 10, 20),
        (LogNormal(median=100, sigma=0.5), 100 * math.exp(0.125), 1, 1_000_000),
        (LogNormal.of_mean(200, 1.0, 1, 1_000_000), 200, 1, 1_000_000),
        (LogNormal(median=100, sigma=2, low=90, high=110), 100, 90, 110),
    ],
)
def test_lengths_have_the_mean_and_bounds_that_were_asked_for(
    lengths: Lengths, mean: float, low: int, high: int
) -> None:
    tokens = lengths.tokens(np.random.default_rng(1), 100_000)
    assert tokens.dtype == np.int64
    assert tokens.mean() == pytest.approx(mean, rel=0.03)
    assert tokens.min() >= low
    assert tokens.max() <= high


@pytest.mark.parametrize("bounds", [{"low": 0, "high": 5}, {"low": 6, "high": 5}])
def test_impossible_bounds_are_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(InvalidValueError, match="1 <= low <= high"):
        Uniform(**bounds)
    with pytest.raises(InvalidValueError, match="1 <= low <= high"):
        LogNormal(median=5, sigma=1, **bounds)

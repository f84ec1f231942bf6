"""Equations 14 to 20, by numbers worked out by hand."""

from itertools import product

import numpy as np
import pytest

from benchmarks.annealing_cases import V100
from qlm.agents.batching.policies.annealing.fitting import Timed, equations_of, fit_equations
from qlm.agents.batching.policies.annealing.latency import latency
from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.kv_fit import tokens_that_fit
from qlm.rct_estimator.profiles.builtin import builtin_profiles
from qlm.rct_estimator.profiles.iteration import Coefficients, Equations, IterationTime

NAMES = ("alpha", "beta", "gamma", "delta")


@pytest.mark.parametrize(
    ("batch", "prompt", "output", "prefill_ms", "decode_ms"),
    [(1, 100, 50, 60.37, 813.027), (4, 500, 200, 271.47, 3591.768)],
)
def test_latencies_are_those_of_the_published_coefficients(
    batch: int, prompt: int, output: int, prefill_ms: float, decode_ms: float
) -> None:
    times = latency(V100, batch, np.array([float(prompt)]), np.array([float(output)]))
    assert times.ttft_s[-1, 0] == pytest.approx(prefill_ms / 1e3)
    assert times.e2e_s[-1, 0] == pytest.approx((prefill_ms + decode_ms) / 1e3)
    assert times.tpot_s[-1, 0] == pytest.approx(decode_ms / output / 1e3)


def test_the_decode_time_is_the_sum_over_its_tokens() -> None:
    times = latency(V100, 3, np.array([37.0]), np.array([11.0]))
    for batch in (1, 2, 3):
        tokens = sum(V100.decode.ms(batch, 37 + k) for k in range(1, 12))
        assert times.tpot_s[batch - 1, 0] * 11 == pytest.approx(tokens / 1e3)


def test_tokens_that_fit_are_a_share_of_the_free_memory() -> None:
    assert tokens_that_fit(20e9, 57_344) == pytest.approx(313_900, abs=50)
    assert tokens_that_fit(1_000, 10, utility=0.5) == 50


@pytest.mark.parametrize("noise", [0.0, 0.002])
def test_the_fit_recovers_the_published_coefficients(noise: float) -> None:
    rng = np.random.default_rng(0)

    def timed(each: Coefficients) -> list[Timed]:
        # Where each term counts: up to 32 requests of up to 2 000 tokens, as the paper profiles.
        points = product((1, 2, 4, 8, 16, 32), range(100, 2001, 20))
        return [Timed(b, n, each.ms(b, n) * (1 + noise * rng.normal())) for b, n in points]

    found = fit_equations(timed(V100.prefill), timed(V100.decode))
    for kind in ("prefill", "decode"):
        for name in NAMES:
            wanted, value = getattr(getattr(V100, kind), name), getattr(getattr(found, kind), name)
            if noise and (kind, name) == ("prefill", "gamma"):
                continue  # a thousandth of the other terms: below the noise
            assert value == pytest.approx(wanted, rel=0.01 if not noise else 0.1), (kind, name)


def test_no_coefficient_is_negative_where_times_fall_with_the_length() -> None:
    falling = [Timed(b, n, 50.0 + 2.0 * b - 0.01 * n) for b, n in product((1, 2, 4), (100, 500, 900))]
    found = fit_equations(falling, falling).decode
    assert (found.alpha, found.gamma) == (0.0, 0.0)
    assert found.beta == pytest.approx(2.0)
    assert found.delta == pytest.approx(45.0)


@pytest.mark.parametrize("points", [[], [Timed(1, 100, 1.0)] * 3, [Timed(1, 100, 0.0)] * 9])
def test_too_few_points_are_refused(points: list[Timed]) -> None:
    with pytest.raises(InvalidValueError, match="prefill"):
        fit_equations(points, points)


def test_sampling_a_profile_gives_back_what_its_iterations_are_made_of() -> None:
    # One prompt of l tokens and b of them are lines of b l, and a decode reads b l tokens of context.
    iteration = IterationTime(
        host_ms=0.0, linear_ms=((1, 15.1), (32, 18.2), (100, 25.0), (64_000, 6415.0)), kv_ms=0.0002,
        sequence_ms=0.5,
    )  # fmt: skip
    found = equations_of(iteration)
    assert found.prefill == _near(Coefficients(alpha=0.1, beta=0.5, gamma=0.0, delta=15.0))
    assert found.decode == _near(Coefficients(alpha=0.0002, beta=0.6, gamma=0.0, delta=15.0))


@pytest.mark.parametrize("profile", builtin_profiles(), ids=lambda each: f"{each.model}-{each.accelerator}")
def test_shipped_profiles_can_be_sampled(profile: object) -> None:
    iteration = profile.iteration  # type: ignore[attr-defined]
    found: Equations = equations_of(iteration)
    for batch, context in ((1, 200), (8, 800), (32, 2000)):
        real = iteration.ms(tokens=batch, context_tokens=batch * context, sequences=batch, mixed=False)
        assert found.decode.ms(batch, context) == pytest.approx(real, rel=0.1)


def _near(wanted: Coefficients) -> Coefficients:
    values = {name: pytest.approx(getattr(wanted, name), rel=1e-6, abs=1e-6) for name in NAMES}

    class Near:
        def __eq__(self, other: object) -> bool:
            return all(getattr(other, name) == value for name, value in values.items())

    return Near()  # type: ignore[return-value]

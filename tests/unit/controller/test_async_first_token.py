"""Time to the first token under asynchronous scheduling, against iterations drawn one by one."""

import numpy as np
import pytest

from qlm.controller.core.estimating.async_first_token import PromptWork, async_first_token_s
from qlm.rct_estimator.length_predictive import FloatArray

DECODE_S = 0.02
OWN_S = np.full(32, 0.05)


def drawn_s(rate_rps: float, log_sd: float, mean_s: float, requests: int = 40_000) -> FloatArray:
    """Return the waits of drawn requests: what comes in iteration n is computed in n + 2."""
    rng = np.random.default_rng(7)
    arrivals = np.cumsum(rng.exponential(1 / rate_rps, requests))
    work = rng.lognormal(np.log(mean_s) - log_sd**2 / 2, log_sd, requests)
    waits, coming, end_s, due = np.zeros(requests), 0, 0.0, [[], []]  # type: tuple[FloatArray, int, float, list[list[int]]]
    while coming < requests:
        computed, due = due[0], [due[1], []]
        end_s += DECODE_S + work[computed].sum()
        for one in computed:
            waits[one] = end_s - arrivals[one] - work[one] - DECODE_S
        while coming < requests and arrivals[coming] <= end_s:
            due[1].append(coming)
            coming += 1
    return waits[100 : coming - 100]


@pytest.mark.parametrize("log_sd", [0.3, 0.9])
@pytest.mark.parametrize("share", [0.1, 0.4, 0.7])
def test_first_tokens_come_when_drawn_iterations_bring_them(share: float, log_sd: float) -> None:
    mean_s = 0.06
    rate_rps = share / mean_s
    square_s = rate_rps * mean_s**2 * np.exp(log_sd**2)
    forecast_s = async_first_token_s(DECODE_S, PromptWork(rate_rps, share, float(square_s)), OWN_S) - 0.05
    actual_s = drawn_s(rate_rps, log_sd, mean_s)
    assert forecast_s.mean() == pytest.approx(actual_s.mean(), rel=0.1)
    low, high = np.quantile(forecast_s, [0.05, 0.95])
    assert 0.84 <= np.mean((actual_s >= low) & (actual_s <= high)) <= 0.95
    assert (np.diff(forecast_s) >= 0).all()

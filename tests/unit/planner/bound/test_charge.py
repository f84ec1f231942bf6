import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qlm.planner.bound.charge import Charges, charge, normal_terms
from qlm.planner.bound.grid import FIRST_S, edges_until
from qlm.planner.bound.isotonic import never_rising


def charges(
    requests: int,
    service_s: float,
    tail_s: float,
    low_sd: float,
    slope: float,
    own_var: float,
    deadline_s: float,
) -> Charges:
    one = np.ones((1, 1))
    return Charges(
        runs=one.astype(np.bool_),
        first_s=0 * one,
        service_s=service_s * one,
        tail_s=tail_s * one,
        low_sd=low_sd * one,
        own_var=own_var * one,
        extra_s=0 * one,
        busy_s=np.zeros(1),
        busy_var=np.zeros(1),
        total_var=np.array([1e12]),
        prior_s=np.array([[0.0, np.inf]]),
        prior_slope=np.array([[slope, np.inf]]),
        shared_sd=np.zeros((2, 1, 1)),
        shared_slope=np.zeros((2, 1)),
        shared_most=np.zeros(1),
        model=np.zeros(1, dtype=np.int64),
        requests=np.array([float(requests)]),
        deadline_s=np.array([deadline_s]),
        late_weight=1.0,
        miss_weight_s=600.0,
        allowed=np.array([float(requests)]),
        promise_s=0.0,
    )


def request_penalty_s(x: float, var: float) -> float:
    if x * x >= 1600 * var:
        return x + 600.0 if x > 0 else 0.0
    sd = math.sqrt(var)
    late = 0.5 * math.erfc(-x / sd / math.sqrt(2))
    return (x + 600.0) * late + sd * math.exp(-0.5 * (x / sd) ** 2) / math.sqrt(2 * math.pi)


@settings(max_examples=150, deadline=None)
@given(
    requests=st.integers(1, 30),
    service_s=st.floats(0.0, 50.0),
    tail_s=st.floats(0.0, 10.0),
    tail_var=st.sampled_from([0.0, 0.3, 9.0]),
    drain_cv=st.floats(0.0, 1.0),
    slope=st.sampled_from([0.0, 0.1, 2.0]),
    deadline_s=st.floats(-200.0, 120.0),
    start_s=st.floats(0.0, 100.0),
    later_s=st.floats(0.0, 40.0),
    spread=st.floats(0.0, 1.0),
)
def test_no_start_in_the_interval_costs_less(
    requests: int,
    service_s: float,
    tail_s: float,
    tail_var: float,
    drain_cv: float,
    slope: float,
    deadline_s: float,
    start_s: float,
    later_s: float,
    spread: float,
) -> None:
    service_var = (drain_cv * service_s) ** 2
    low_sd = math.sqrt(tail_var + service_var / requests**2)
    c = charges(requests, service_s, tail_s, low_sd, slope, service_var + tail_var, deadline_s)
    actual_s = start_s + later_s
    start_var = spread * slope * actual_s
    penalty_s = sum(
        request_penalty_s(
            actual_s + u * service_s + tail_s - deadline_s, start_var + u * u * service_var + tail_var
        )
        for u in (r / requests for r in range(1, requests + 1))
    )
    for until_s in (actual_s, actual_s + 5.0, math.inf):
        assert charge(c, 0, 0, start_s, until_s) <= penalty_s * (1 + 1e-9) + 1e-9


def test_it_is_exact_for_one_request_of_known_variance() -> None:
    c = charges(1, 5.0, 2.0, 1.5, 0.0, 2.25, 6.0)
    assert math.isclose(charge(c, 0, 0, 0.0, 0.0), request_penalty_s(1.0, 2.25), rel_tol=1e-6)


@settings(max_examples=100, deadline=None)
@given(x=st.floats(-20.0, 20.0), sd=st.floats(0.1, 5.0))
def test_terms_are_each_others_derivatives(x: float, sd: float) -> None:
    step = 1e-4
    low, high, here = (normal_terms(at, sd) for at in (x - step, x + step, x))
    assert math.isclose((high[1] - low[1]) / (2 * step), here[0], abs_tol=1e-6)
    assert math.isclose((high[2] - low[2]) / (2 * step), here[1], abs_tol=1e-5)


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.01, 10.0)), min_size=1, max_size=8))
def test_never_rising_is_the_nearest_such_sequence(values: list[tuple[float, float]]) -> None:
    wanted, weights = (np.array(each) for each in zip(*values, strict=True))
    near = never_rising(wanted, weights)
    assert (np.diff(near) <= 1e-9).all()
    assert math.isclose((near * weights).sum(), (wanted * weights).sum(), rel_tol=1e-9, abs_tol=1e-9)
    error = (weights * (near - wanted) ** 2).sum()
    for shift in np.linspace(-1, 1, 5):
        for cut in range(len(wanted) + 1):
            other = near.copy()
            other[:cut] += abs(shift)
            assert (weights * (other - wanted) ** 2).sum() >= error - 1e-9
            other = near.copy()
            other[cut:] -= abs(shift)
            assert (weights * (other - wanted) ** 2).sum() >= error - 1e-9


def test_the_grid_is_the_same_however_far_it_goes() -> None:
    near, far = edges_until(3.0, 0.05), edges_until(5000.0, 0.05)
    assert near[-1] >= 3.0
    assert far[-1] >= 5000.0
    assert np.array_equal(near, far[: len(near)])
    assert near[0] == 0.0
    assert math.isclose(near[1], FIRST_S)
    assert len(edges_until(0.0, 0.05)) == 2

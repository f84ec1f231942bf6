"""The penalty in constant time against the sum over the requests."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qlm.planner.fast.integrals import part_penalty, request_penalty
from qlm.planner.fast.penalty import (
    SHORT_S,
    GroupWork,
    group_penalty,
    integrated,
    summed_penalty,
)
from qlm.planner.limits import ON_TIME_S

Group = tuple[float, float, float, float, float, float, float]


def in_constant_time(group: Group, cross_var: float = 0.0) -> float:
    requests, late_s, var, service_s, service_var, tail_var, miss_weight_s = group
    limits = integrated(*(np.array([each]) for each in (requests, service_s, service_var)))
    work = GroupWork(
        requests,
        service_s,
        service_var,
        tail_var,
        0.5 * service_s / requests,
        1.0 / service_s if service_s > SHORT_S else 0.0,
        *(float(each[0]) for each in limits),
    )
    return group_penalty(work, late_s, var, miss_weight_s, cross_var)


def in_sum(group: Group, cross_var: float = 0.0) -> float:
    return summed_penalty(*group, cross_var)


@given(
    requests=st.integers(1, 400),
    late_s=st.floats(-500, 500),
    sd_s=st.floats(0, 60),
    service_s=st.floats(0, 300),
    spread=st.floats(0, 0.5),
    tail_sd_s=st.floats(0, 10),
    correlation=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
)
@example(requests=5, late_s=0.5, sd_s=0.0, service_s=5e-324, spread=0.0, tail_sd_s=0.0, correlation=0.0)
@example(requests=5, late_s=1.0, sd_s=0.0, service_s=4e-59, spread=0.0, tail_sd_s=4e-59, correlation=0.0)
@example(requests=200, late_s=-40.0, sd_s=60.0, service_s=60.0, spread=0.2, tail_sd_s=0.0, correlation=1.0)
def test_a_group_costs_what_its_requests_cost(
    requests: int,
    late_s: float,
    sd_s: float,
    service_s: float,
    spread: float,
    tail_sd_s: float,
    correlation: float,
) -> None:
    args = (float(requests), late_s, sd_s**2, service_s, (spread * service_s) ** 2, tail_sd_s**2, 600.0)
    cross_var = 2.0 * correlation * sd_s * spread * service_s
    exact = in_sum(args, cross_var)
    # At a sharp edge the midpoint rule may be off by a miss.
    assert in_constant_time(args, cross_var) == pytest.approx(exact, rel=0.05, abs=900.0)


@given(late_s=st.floats(-100, 100), service_s=st.floats(1, 300), requests=st.integers(1, 300))
def test_without_variance_it_is_exact_but_at_the_edge(late_s: float, service_s: float, requests: int) -> None:
    args = (float(requests), late_s, 0.0, service_s, 0.0, 0.0, 600.0)
    step = service_s / requests
    edge = abs((-late_s / step) - round(-late_s / step)) < 1e-6
    if not edge:
        assert in_constant_time(args) == pytest.approx(in_sum(args), rel=1e-9, abs=1e-6)


@given(
    requests=st.integers(5, 400),
    passed=st.floats(-0.2, 1.2),
    service_s=st.floats(0.1, 300),
    sd_steps=st.floats(1e-3, 0.49),
    tail_part=st.floats(0, 1),
    spread=st.floats(0, 0.099),
)
def test_deadlines_sharper_than_requests_are_apart_are_met_exactly(
    requests: int, passed: float, service_s: float, sd_steps: float, tail_part: float, spread: float
) -> None:
    """Drains as uncertain as leaves the request at the deadline within half the time between two."""
    var = (sd_steps * service_s / requests) ** 2
    service_var = min((spread * service_s) ** 2, var / max(passed, 1e-3) ** 2 / 2)
    fixed_var = var - min(1.0, max(0.0, passed)) ** 2 * service_var
    start_var, tail_var = (1.0 - tail_part) * fixed_var, tail_part * fixed_var
    args = (float(requests), -passed * service_s, start_var, service_s, service_var, tail_var, 600.0)
    assert in_constant_time(args) == pytest.approx(in_sum(args), rel=1e-6, abs=1e-3)


@given(requests=st.integers(5, 400), passed=st.floats(-0.2, 1.2), sd_steps=st.floats(0.5, 3))
def test_less_sharp_ones_are_wrong_by_a_twentieth_of_a_miss_at_most(
    requests: int, passed: float, sd_steps: float
) -> None:
    args = (float(requests), -passed * requests, sd_steps**2, float(requests), 0.0, 0.0, 600.0)
    assert in_constant_time(args) == pytest.approx(in_sum(args), abs=0.05 * 600.0)


@given(late_s=st.floats(-50, 50), more_s=st.floats(0, 50), sd_s=st.floats(0.01, 20))
def test_a_later_start_never_costs_less(late_s: float, more_s: float, sd_s: float) -> None:
    def cost(at_s: float) -> float:
        return in_constant_time((64.0, at_s, sd_s**2, 30.0, 9.0, 4.0, 600.0))

    assert cost(late_s + more_s) >= cost(late_s) - 1e-6


@given(spare_sd=st.floats(2.0, 4.5), spread=st.floats(0.02, 0.3), sd_s=st.floats(0.05, 3.0))
@example(spare_sd=4.25, spread=0.25, sd_s=0.25)  # 0.031 s, 1.61 times the sum
def test_rare_lateness_is_not_overlooked(spare_sd: float, spread: float, sd_s: float) -> None:
    service_s = 10.0
    spare_s = spare_sd * math.hypot(sd_s, spread * service_s)
    group = (100.0, -service_s - spare_s, sd_s**2, service_s, (spread * service_s) ** 2, 0.0, 600.0)
    # On a grid of these ranges it is 1.00 to 1.71 times the sum, the latter for costs of some 0.01 s.
    assert in_constant_time(group) == pytest.approx(in_sum(group), rel=0.75, abs=0.01)


def test_one_request_is_the_mean_lateness_and_the_price_of_a_miss() -> None:
    assert request_penalty(0.0, 4.0, 600.0) == pytest.approx(2.0 / math.sqrt(2 * math.pi) + 300.0)
    assert request_penalty(3.0, 0.0, 600.0) == 603.0
    assert request_penalty(0.0, 0.0, 600.0) == 0.0, "on the stroke is on time"
    assert request_penalty(0.9 * ON_TIME_S, 0.0, 600.0) == 0.0
    for requests in (1.0, 20.0):
        for late_s, missed in ((0.9, 0), (1.1, 1)):
            cost = in_constant_time((requests, late_s * ON_TIME_S - 10.0, 0.0, 10.0, 0.0, 0.0, 600.0))
            assert cost == pytest.approx(600.0 * missed, abs=1e-4)


@given(from_s=st.floats(-100, 100), span_s=st.floats(0.1, 100), sd=st.floats(0.01, 30))
def test_the_tabulated_integral_is_that_of_the_formula(from_s: float, span_s: float, sd: float) -> None:
    def integrals(z: float) -> tuple[float, float]:
        below = 0.5 * math.erfc(-z / math.sqrt(2))
        density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        return z * below + density, 0.5 * ((z * z + 1) * below + z * density)

    begin, end = integrals(from_s / sd), integrals((from_s + span_s) / sd)
    exact = sd * (600.0 * (end[0] - begin[0]) + sd * (end[1] - begin[1]))
    assert part_penalty(from_s, from_s + span_s, sd, 600.0) == pytest.approx(
        exact, rel=1e-9, abs=1e-7 * sd * (600.0 + sd)
    )

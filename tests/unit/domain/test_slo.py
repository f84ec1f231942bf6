"""Objectives and the classes they fall into."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.domain.slo import (
    DEADLINE_MAX_MS,
    FINE_GRID,
    STEPS,
    BatchSlo,
    DeadlineSlo,
    ReadingSlo,
    SloGrid,
    TokenSlo,
)


@given(st.floats(min_value=0.01, max_value=DEADLINE_MAX_MS))
def test_a_step_is_at_most_the_value_and_the_next_one_is_above_it(value: float) -> None:
    floor = FINE_GRID.floor(value)
    assert floor <= value * (1 + 1e-9)
    assert value < floor * 1.61
    assert math.isclose(FINE_GRID.floor(floor), floor)


@given(
    st.floats(min_value=0.01, max_value=DEADLINE_MAX_MS), st.sampled_from(sorted(STEPS)), st.integers(1, 3)
)
def test_every_grid_rounds_down_and_leaves_its_own_steps_alone(
    value: float, steps: int, decades: int
) -> None:
    grid = SloGrid(steps=STEPS[steps], decades=decades)
    floor = grid.floor(value)
    assert floor <= value * (1 + 1e-9)
    assert value < floor * 10**decades * (1 + 1e-9)
    assert math.isclose(grid.floor(floor), floor)


def test_the_classes_of_all_possible_deadlines_are_few() -> None:
    labels = {
        DeadlineSlo(deadline_ms=0.01 * 1.01**n).label()
        for n in range(2600)
        if 0.01 * 1.01**n <= DEADLINE_MAX_MS
    }
    assert 50 <= len(labels) <= 12 * len(FINE_GRID.steps)


@pytest.mark.parametrize(
    ("slo", "label", "target_ms"),
    [
        (DeadlineSlo(deadline_ms=20_000), "deadline-20s", 20_000),
        (TokenSlo(ttft_ms=400), "ttft-400ms", 400),
        (TokenSlo(ttft_ms=999, tpot_ms=40), "ttft-800ms-tpot-40ms", 999),
        (ReadingSlo(ttft_ms=1000, tokens_per_s=4.8), "ttft-1s-speed-4", 1000),
        (BatchSlo(), "batch", None),
    ],
)
def test_an_objective_has_a_class_label_and_a_moment_to_meet(
    slo: DeadlineSlo | TokenSlo | ReadingSlo | BatchSlo, label: str, target_ms: float | None
) -> None:
    assert (slo.label(), slo.target_ms) == (label, target_ms)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 10**400, DEADLINE_MAX_MS * 1.1, 0.001])
def test_an_impossible_time_is_refused_by_name(value: float) -> None:
    with pytest.raises(InvalidValueError, match=r"slo\.deadline_ms"):
        DeadlineSlo(deadline_ms=value)
    with pytest.raises(InvalidValueError, match=r"slo\.ttft_ms"):
        TokenSlo(ttft_ms=value)
    with pytest.raises(InvalidValueError, match=r"slo\.tpot_ms"):
        TokenSlo(ttft_ms=1.0, tpot_ms=value)


def test_an_impossible_speed_is_refused_by_name() -> None:
    with pytest.raises(InvalidValueError, match=r"slo\.tokens_per_s is 0\.0"):
        ReadingSlo(ttft_ms=1.0, tokens_per_s=0.0)
    with pytest.raises(InvalidValueError, match=r"slo\.tokens_per_s is 1000"):
        ReadingSlo(ttft_ms=1.0, tokens_per_s=10**400)

"""Iterations that a profile times."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.cli.profiling.grid import answer_tokens, choose_grid
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import EngineCapacity
from qlm.rct_estimator.profiles.columns import Columns, unidentified
from qlm.rct_estimator.profiles.points import FitPoint
from support.profiled_engine import LARGE

capacities = st.builds(
    EngineCapacity,
    kv_tokens=st.integers(256, 500_000),
    block_tokens=st.just(16),
    seqs_max=st.integers(2, 512),
    context_tokens=st.integers(256, 32_768),
)


@given(capacities, st.booleans(), st.integers(256, 16_384))
def test_a_grid_asks_for_nothing_that_the_engine_cannot_hold(
    capacity: EngineCapacity, quick: bool, batched: int
) -> None:
    try:
        grid = choose_grid(capacity, quick=quick, batched_tokens_max=batched)
    except InvalidValueError:
        assert capacity.kv_tokens < 512
        return
    for cell in grid.cells:
        text = cell.context + answer_tokens(cell, grid.decode_tokens, batched)
        assert text < capacity.context_tokens
        assert cell.decodes * text + max((b * n for b, n in cell.prompts), default=0) <= capacity.kv_tokens
        for number, tokens in cell.prompts:
            assert cell.decodes + number <= capacity.seqs_max
            assert tokens < capacity.context_tokens
            assert number == 1 or number * tokens + cell.decodes <= batched


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("context_tokens", [2048, 8192])
def test_a_grid_identifies_all_coefficients(quick: bool, context_tokens: int) -> None:
    capacity = replace(LARGE, context_tokens=context_tokens)
    grid = choose_grid(capacity, quick=quick, batched_tokens_max=2048)
    points = [FitPoint(0, 0, 0, cell.decodes, cell.context, 10.0) for cell in grid.cells]
    points += [
        FitPoint(b, min(n, 2047), 0, cell.decodes, cell.context, 10 + 0.05 * b * n)
        for cell in grid.cells
        for b, n in cell.prompts
    ]
    points += [FitPoint(1, 2047, 2047, 1, 20, 110.0)] if context_tokens > 4096 else []
    assert set(unidentified(Columns.of(points))) <= ({"square_ms"} if context_tokens == 2048 else set())


def test_a_grid_has_short_prompts_prompts_beside_decodes_and_prompts_up_to_the_context() -> None:
    grid = choose_grid(LARGE, quick=False, batched_tokens_max=2048)
    alone, *others = grid.cells
    assert {n for b, n in alone.prompts if b == 1} >= {16, 32, 64, 128, 256}
    assert max(n for _b, n in alone.prompts) > 8000
    mixed = {(cell.decodes, n) for cell in others for _b, n in cell.prompts}
    assert mixed == {(decodes, n) for decodes in (8, 32, 128) for n in (128, 1024)}
    for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        assert len({cell.context for cell in others if cell.decodes == batch}) >= 2, batch


def test_an_engine_too_small_to_measure_is_refused() -> None:
    tiny = EngineCapacity(kv_tokens=128, block_tokens=16, seqs_max=4, context_tokens=100)
    with pytest.raises(InvalidValueError, match="context is 100"):
        choose_grid(tiny, quick=True, batched_tokens_max=2048)

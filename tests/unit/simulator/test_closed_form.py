"""Runs of iterations against the plain token-by-token engine, to the nanosecond."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from qlm.simulator.engine.batching import BatchingEngine
from support.engine_worlds import World, drive, worlds
from support.token_by_token import TokenByToken

ALL_AT_ONCE = 10**9


@settings(max_examples=400, deadline=None)
@given(worlds(), st.integers(0, 2**32))
def test_runs_of_iterations_are_single_iterations_to_the_nanosecond(world: World, seed: int) -> None:
    expected = drive(world.engine(TokenByToken), world, 1, None)
    for iterations_max in (1, 3, 16, ALL_AT_ONCE):
        assert drive(world.engine(BatchingEngine), world, iterations_max, None) == expected
        cuts = random.Random(seed)
        assert drive(world.engine(BatchingEngine), world, iterations_max, cuts) == expected

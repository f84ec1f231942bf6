"""An engine with a batch policy: runs of iterations are single iterations, and `fcfs` changes nothing."""

import random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qlm.agents.batching.decision import BatchPolicy
from qlm.agents.batching.policies.fcfs import FirstComeFirstServed
from qlm.agents.batching.view import View
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.host_cache import PROACTIVE, KvOffloading
from support.engine_worlds import Seen, World, drive, offloadings, worlds
from support.random_policy import RandomPolicy

ALL_AT_ONCE = 10**9


def driven(
    world: World,
    policy: BatchPolicy,
    iterations_max: int,
    cuts: random.Random | None,
    offloading: KvOffloading = PROACTIVE,
) -> Seen:
    engine = world.engine(BatchingEngine, policy=policy, offloading=offloading)
    return drive(engine, world, iterations_max, cuts)


def plain(view: View) -> list[Any]:
    return [each.tolist() if isinstance(each, np.ndarray) else each for each in view]


@settings(max_examples=200, deadline=None)
@given(worlds(), st.integers(0, 2**32), offloadings())
def test_decisions_do_not_depend_on_where_runs_are_cut(
    world: World, seed: int, offloading: KvOffloading
) -> None:
    policy = RandomPolicy(seed)
    expected = driven(world, policy, 1, None, offloading)
    views = [plain(view) for view in policy.views]
    for iterations_max in (3, 16, ALL_AT_ONCE):
        for cuts in (None, random.Random(seed)):
            policy = RandomPolicy(seed)
            assert driven(world, policy, iterations_max, cuts, offloading) == expected
            assert [plain(view) for view in policy.views] == views


@settings(max_examples=200, deadline=None)
@given(worlds(), st.sampled_from([1, 16, ALL_AT_ONCE]))
def test_first_come_first_served_is_the_rule_of_the_engine(world: World, iterations_max: int) -> None:
    expected = drive(world.engine(BatchingEngine), world, iterations_max, None)
    assert driven(world, FirstComeFirstServed(), iterations_max, None) == expected

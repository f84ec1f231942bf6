"""Every batch policy on every host: equal views give equal decisions, and no request is lost."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from qlm.agents.batching.decision import BatchPolicy
from qlm.agents.batching.policies.annealing import compiling
from qlm.agents.batching.policies.registry import POLICIES, batch_policy
from qlm.agents.batching.pool import pool_of
from qlm.agents.batching.room import REQUESTS_MAX
from qlm.domain.errors import InvalidValueError
from support.hosting_world import hosted_burst, serve_by_aborts, tokens_of
from support.policy_engine import CAPACITY, Recorded, Times, burst, serve

CALLS = burst(seed=1)
REQUESTS = hosted_burst()

Host = tuple[Callable[[BatchPolicy], Times], dict[str, int]]
"""Serves a burst, whose answers have so many tokens."""

TOKENS = {str(call.call_id): tokens for call, _, tokens in CALLS}
HOSTS: dict[str, Host] = {
    f"engine model, {name}": (
        partial(serve, calls=CALLS, host_blocks=blocks, asynchronous=asynchronous),
        TOKENS,
    )
    for name, blocks, asynchronous in (
        ("synchronous", 0, False),
        ("asynchronous", 0, True),
        ("with host memory", 1000, True),
    )
}
# Those that are refused by aborts are among the policies: none of them may lose a request.
HOSTS["agent, by aborts"] = partial(serve_by_aborts, requests=REQUESTS), tokens_of(REQUESTS)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("host", HOSTS)
def test_every_request_of_a_burst_ends_and_equal_views_give_equal_decisions(host: str, name: str) -> None:
    policy = Recorded(batch_policy(name))
    serve_burst, tokens_by_id = HOSTS[host]
    assert {id: tokens for id, (_, _, tokens) in serve_burst(policy).items()} == tokens_by_id
    again = batch_policy(name)
    assert [again.decide(view) for view in policy.views] == policy.decisions
    assert any(np.any(view.pinned) for view in policy.views)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("host", HOSTS)
def test_equal_bursts_have_equal_times(host: str, name: str) -> None:
    serve_burst, _ = HOSTS[host]
    assert serve_burst(batch_policy(name)) == serve_burst(batch_policy(name))


@pytest.mark.parametrize("name", POLICIES)
def test_an_agent_gives_an_engine_at_most_its_pool(name: str) -> None:
    pool = pool_of(name, CAPACITY)
    assert 0 <= pool <= REQUESTS_MAX - CAPACITY.seqs_max
    assert name != "fcfs" or pool == 0


@pytest.mark.parametrize("name", ["annealing", "annealing-continuous"])
def test_the_pool_of_a_policy_compiles_nothing(name: str) -> None:
    before = compiling._compiled.cache_info()
    assert pool_of(name, CAPACITY) > 0
    assert compiling._compiled.cache_info() == before


def test_an_unknown_name_gets_the_list_of_names() -> None:
    with pytest.raises(InvalidValueError, match="batching is 'nosuch'; expected one of fcfs"):
        batch_policy("nosuch")

"""Number of requests that the agent gives to an engine with a batch policy."""

from math import inf
from typing import Final

import numpy as np

from qlm.agents.batching.policies.registry import FCFS, POLICIES
from qlm.agents.batching.room import REQUESTS_MAX
from qlm.agents.batching.view import Machine, Pace, View
from qlm.domain.fleet import EngineCapacity
from qlm.rct_estimator.profiles.iteration import IterationTime

LOOKAHEAD: Final = 16
"""Least pool of an agent that hosts a policy: without it, `virtual-queue` would never see whom to prefer."""


def pool_of(name: str, capacity: EngineCapacity, *, by_aborts: bool = False) -> int:
    """Return the requests beyond the batch slots from which a policy wants to choose: `room` of no requests.

    Args:
        name: A batch policy. With `fcfs` there is no pool.
        capacity: Of the engine.
        by_aborts: The agent hosts the policy.
    """
    if name == FCFS:
        return 0
    # Not `batch_policy`: the agent's loop must not wait for what that compiles.
    room = POLICIES[name]().room(_without_requests(capacity))
    pool = max(0, min(room, max(REQUESTS_MAX, 2 * capacity.seqs_max)) - capacity.seqs_max)
    return max(pool, min(LOOKAHEAD, capacity.seqs_max)) if by_aborts else pool


def _without_requests(capacity: EngineCapacity) -> View:
    ints, floats = np.zeros(0, np.int64), np.zeros(0)
    return View(
        now_s=0.0, ids=(), place=ints, arrival_s=floats, prompt=ints, generated=ints, blocks=ints,
        host_tokens=ints, preemptions=ints, rate=floats, ttft_s=floats, read_end_s=floats, late_s=floats,
        late_sum_s=floats, deadline_s=floats, rank=ints, pinned=np.zeros(0, np.bool_), left_mean=floats,
        left_sd=floats, left_max=floats, machine=_machine(capacity), pace=Pace(0.0, 0.0, 0.0, 0.0, 0.0, 0, 0),
    )  # fmt: skip


def _machine(capacity: EngineCapacity) -> Machine:
    """Return an engine of this capacity; its speed, which is not known here, limits nothing."""
    return Machine(
        iteration=IterationTime.constant(1.0),
        kv_blocks=capacity.kv_blocks,
        free_blocks=capacity.kv_blocks,
        block_tokens=capacity.block_tokens,
        seqs_max=capacity.seqs_max,
        batched_tokens_max=max(capacity.seqs_max, 2048),
        token_bytes=1,
        host_blocks=0,
        link_bytes_per_s=inf,
        load_free_s=0.0,
        write_free_s=0.0,
    )

"""The `View` of the requests of an agent for a batch policy."""

from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

import numpy as np

from qlm.agents.batching.pace import tokens_at_most, tokens_left
from qlm.agents.batching.readers import ReaderColumns
from qlm.agents.batching.view import Machine, Pace, Place, View
from qlm.agents.core.kv_ledger import GROWTH_BLOCKS, KvLedger
from qlm.agents.core.request import TrackedRequest
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import CallObjective
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.profile import Profile

BATCHED_TOKENS: Final = 2048
"""Most tokens of an iteration where neither the engine nor a profile says it: vLLM's default."""


class Member(NamedTuple):
    """A request that a policy knows.

    Attributes:
        tracked: The request.
        row: Its row among the readers.
        objective: Its objective as engines with a policy get it.
    """

    tracked: TrackedRequest
    row: int
    objective: CallObjective


def blocks_for(
    kv: KvLedger,
    capacity: EngineCapacity,
    inside: Sequence[TrackedRequest],
    outside: Sequence[TrackedRequest],
) -> int:
    """Return the KV blocks that the requests of a policy may take.

    They are as many as those inside need with room to grow. Else one that has grown would not fit any more,
    and a smaller one that is less urgent would replace it: when blocks run out, the engine itself preempts,
    at less cost. A request that runs alone may use the watermark.
    """
    largest = max(kv.blocks_of(each.tokens + 1) for each in (*inside, *outside))
    grown = sum(kv.blocks_of(each.tokens + 1) + GROWTH_BLOCKS for each in inside)
    return max(kv.usable_blocks, grown, min(capacity.kv_blocks, largest))


def machine_of(capacity: EngineCapacity, blocks: int, profile: Profile | None, token_s: float) -> Machine:
    """Return an engine that shows nothing but its capacity.

    Args:
        capacity: Of the engine.
        blocks: KV blocks that requests may take.
        profile: Its expected speed; None if it is not known.
        token_s: Measured time per output token, in place of that; 0 before the first answer.
    """
    batched_tokens = capacity.batched_tokens_max or (profile.batched_tokens_max if profile else None)
    return Machine(
        iteration=profile.iteration if profile else IterationTime.constant(1000 * token_s or 1.0),
        kv_blocks=blocks,
        free_blocks=blocks,
        block_tokens=capacity.block_tokens,
        seqs_max=capacity.seqs_max,
        batched_tokens_max=batched_tokens or BATCHED_TOKENS,
        token_bytes=profile.kv_bytes_per_token if profile else 1,
        host_blocks=0,
        link_bytes_per_s=profile.host_bandwidth_bytes_per_s if profile else inf,
        load_free_s=0.0,
        write_free_s=0.0,
    )


def view_of(
    times_ns: tuple[int, int],
    members: Sequence[Member],
    inside: int,
    readers: ReaderColumns,
    machine: Machine,
    pace: Pace,
) -> View:
    """Return the view; row i of each column is `members[i]`.

    Args:
        times_ns: The present and the origin of its times.
        members: Those that generate, then those that wait here.
        inside: Number of the former.
        readers: Their readers.
        machine: The engine with all blocks free.
        pace: Learned of it.
    """
    ints, floats, (now_ns, origin_ns) = np.int64, np.float64, times_ns

    def seconds(at_ns: int | None) -> float:
        return inf if at_ns is None else (at_ns - origin_ns) / 1e9

    requests, objectives = [each.tracked for each in members], [each.objective for each in members]
    rows = np.array([each.row for each in members], ints)
    generated = np.array([len(each.output) for each in requests], ints)
    blocks = np.array([each.blocks for each in requests], ints)
    limit = np.array([each.request.sampling.max_tokens for each in requests], ints)
    left_mean, left_sd = tokens_left(pace, generated, limit)
    return View(
        now_s=seconds(now_ns),
        ids=tuple([each.id for each in requests]),
        place=np.array([Place.INSIDE] * inside + [Place.OUTSIDE] * (len(members) - inside), ints),
        arrival_s=np.array([seconds(each.arrival_ns) for each in objectives], floats),
        prompt=np.array([each.request.prompt_tokens for each in requests], ints),
        generated=generated,
        blocks=blocks,
        host_tokens=np.zeros(len(members), ints),
        preemptions=np.array([each.generation.preemptions for each in requests], ints),
        rate=np.array([each.tokens_per_s for each in objectives], floats),
        ttft_s=np.array([each.ttft_s for each in objectives], floats),
        read_end_s=readers.read_end_s(rows),
        late_s=readers.late_s[rows],
        late_sum_s=readers.late_sum_s[rows],
        deadline_s=np.array([seconds(each.deadline_ns) for each in objectives], floats),
        rank=np.array([each.rank for each in objectives], ints),
        pinned=np.array([not each.preemptible for each in requests], np.bool_),
        left_mean=left_mean,
        left_sd=left_sd,
        left_max=tokens_at_most(generated, limit),
        machine=machine._replace(free_blocks=max(0, machine.kv_blocks - int(blocks.sum()))),
        pace=pace,
    )

"""When the output of a simulated engine reaches its agent."""

from collections.abc import Sequence
from itertools import pairwise

from qlm.agents.batching.policies.round_robin import RoundRobin
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.simulator.cluster.engine_driver import REPORT_ITERATIONS, EngineDriver
from qlm.simulator.cluster.event_queue import EventQueue
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.generation import Script, scripted_generation
from qlm.simulator.engine.model import Chunk, Emission
from support.policy_engine import PROFILE

PROMPT, ANSWER = 160, 112
CAPACITY = EngineCapacity(kv_tokens=288, block_tokens=16, seqs_max=2, context_tokens=288)
"""Blocks for one of two requests, so that they take turns."""


def test_the_first_token_after_a_preemption_comes_at_its_own_time() -> None:
    """Reported with those after it, it would count as spread evenly over the pause."""
    opener = scripted_generation(
        lambda call: Script(output_tokens=ANSWER, base=int(call.call_id) << 20),
        block_tokens=CAPACITY.block_tokens,
        context_tokens=CAPACITY.context_tokens,
    )
    queue, came = EventQueue(), dict[str, list[tuple[int, int]]]()

    def receive(emissions: Sequence[Emission], chunks: Sequence[Chunk]) -> None:
        for call_id, token_ids in [*chunks, *(each[:2] for each in emissions)]:
            came.setdefault(call_id, []).append((queue.now_ns, len(token_ids)))

    engine = BatchingEngine(PROFILE, CAPACITY, opener, policy=RoundRobin())
    driver = EngineDriver(queue, 0, engine, receive, lambda: 1.0)
    for call_id in ("0", "1"):
        driver.submit(
            EngineCall(call_id=call_id, prompt_ids=(1,) * PROMPT, sampling=Sampling(max_tokens=ANSWER))
        )
    while (next_ns := queue.next_ns) is not None:
        queue.run(next_ns, events_max=1)
    for parts in came.values():
        assert sum(tokens for _, tokens in parts) == ANSWER
        longest_ns = max(later - at for (at, _), (later, _) in pairwise(parts))
        after = [tokens for (at, _), (later, tokens) in pairwise(parts) if later - at > longest_ns / 2]
        assert after and set(after) == {1}
        assert max(tokens for _, tokens in parts) <= REPORT_ITERATIONS

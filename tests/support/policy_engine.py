"""An engine model with a batch policy, and a driver that serves a burst of requests until all have ended."""

import random

from qlm.agents.batching.decision import BatchPolicy, Decision
from qlm.agents.batching.view import View
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import CallObjective, EngineCall
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.generation import Script, scripted_generation
from support.random_policy import check

CAPACITY = EngineCapacity(kv_tokens=16 * 120, block_tokens=16, seqs_max=16, context_tokens=900)
"""KV blocks for a quarter of the burst."""

PROFILE = find_profile(builtin_profiles(), "llama-3-8b", "A100")
END_NS = 3_600_000_000_000

Calls = list[tuple[EngineCall, int, int]]
"""Calls with arrival (ns) and length of the answer, by arrival."""

Times = dict[str, list[int]]
"""First token (ns), end (ns) and number of tokens by call."""


class Recorded:
    """A policy with the views that it got and the decisions that it took."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self.views: list[View] = []
        self.decisions: list[Decision] = []

    def decide(self, view: View) -> Decision:
        check(view)
        self.views.append(view)
        self.decisions.append(self._policy.decide(view))
        return self.decisions[-1]

    def room(self, view: View) -> int:
        room = self._policy.room(view)
        assert room >= 0
        return room


def burst(seed: int, requests: int = 40) -> Calls:
    """Return requests with a reader, a first token, a deadline or no objective, by turns; some are pinned."""
    draw, made = random.Random(seed), []
    for number in range(requests):
        arrival_ns, output = round(draw.uniform(0, 2e9)), draw.randint(1, 120)
        kind = number % 4
        objective = CallObjective(
            arrival_ns=arrival_ns,
            ttft_s=1.0 if kind < 2 else float("inf"),
            tokens_per_s=(10.0, 0.0, float("inf"), float("inf"))[kind],
            deadline_ns=arrival_ns + 20_000_000_000 if kind == 2 else None,
            rank=kind,
        )
        call = EngineCall(
            call_id=f"r{number}", prompt_ids=(1,) * draw.randint(10, 400), objective=objective,
            sampling=Sampling(max_tokens=200, presence_penalty=1.0 if number % 10 == 9 else 0.0),
        )  # fmt: skip
        made.append((call, arrival_ns, output))
    return sorted(made, key=lambda each: each[1])


def serve(policy: BatchPolicy | None, calls: Calls, *, host_blocks: int, asynchronous: bool) -> Times:
    """Serve all calls until they end, in an engine with this many blocks in host memory."""
    outputs = {call.call_id: output for call, _, output in calls}
    opener = scripted_generation(
        lambda call: Script(output_tokens=outputs[call.call_id], base=int(call.call_id[1:]) << 20),
        block_tokens=CAPACITY.block_tokens,
        context_tokens=CAPACITY.context_tokens,
    )
    engine = BatchingEngine(
        PROFILE, CAPACITY, opener, async_scheduling=asynchronous, policy=policy,
        host_kv_bytes=host_blocks * CAPACITY.block_tokens * PROFILE.kv_bytes_per_token,
    )  # fmt: skip
    return drive(engine, calls)


def drive(engine: BatchingEngine, calls: Calls) -> Times:
    """Let an engine serve calls until all have ended."""
    coming, now_ns, seen = list(calls), 0, Times()
    while now_ns < END_NS:
        while coming and coming[0][1] <= now_ns:
            engine.add(coming.pop(0)[0], now_ns)
        run = engine.plan(now_ns, 16)
        if run is None:
            if not coming:
                return seen
            now_ns = coming[0][1]
            continue
        if not run.iterations and coming and coming[0][1] < run.end_ns(0):
            now_ns = coming[0][1]
            continue
        iterations = run.through(coming[0][1]) if coming else run.iterations
        now_ns = run.end_ns(iterations)
        for emission in engine.commit(iterations):
            times = seen.setdefault(emission.call_id, [now_ns, 0, 0])
            times[1] = now_ns
            times[2] += len(emission.token_ids)
        for call_id, token_ids in engine.collect():
            seen[call_id][2] += len(token_ids)
        assert engine.running <= engine.capacity.seqs_max
        assert engine.kv_usage <= 1
    raise AssertionError("some request never ended")

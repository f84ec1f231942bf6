"""A burst of requests on the engine model, without an agent, to compare the estimator with."""

from collections.abc import Iterator

from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.generation import Script, scripted_generation
from qlm.simulator.engine.model import Emission

UNBOUNDED = 1 << 30
"""Iterations of a run of the engine: as many as it can."""


def serve_burst(
    profile: Profile, prompts: FloatArray, outputs: FloatArray
) -> Iterator[tuple[Emission, float]]:
    """Yield what the engine emits, and when in seconds; all requests come at 0, numbered from 0."""
    capacity = EngineCapacity(
        kv_tokens=profile.kv_tokens,
        block_tokens=profile.block_tokens,
        seqs_max=profile.seqs_max,
        context_tokens=profile.context_tokens,
    )

    def script(call: EngineCall) -> Script:
        return Script(output_tokens=call.sampling.max_tokens, base=int(call.call_id) << 32)

    start = scripted_generation(
        script, block_tokens=capacity.block_tokens, context_tokens=capacity.context_tokens
    )
    engine = BatchingEngine(profile, capacity, start)
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        sampling = Sampling(max_tokens=int(output), ignore_eos=True)
        engine.add(EngineCall(call_id=str(i), prompt_ids=(1,) * int(prompt), sampling=sampling), 0)
    now_ns = 0
    while (run := engine.plan(now_ns, UNBOUNDED)) is not None:
        now_ns = run.end_ns(run.iterations)
        for emission in engine.commit(run.iterations):
            yield emission, now_ns / 1e9

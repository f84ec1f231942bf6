"""Speed of the engine model with a full batch: `python -m benchmarks.engine [--profile]`.

One engine serves requests with log-normal lengths, of Azure conversations' means (1155 tokens in, 211 out).
Its batch is kept full: each request that ends is replaced at once. Runs have up to 16 iterations. All tokens
are collected whenever 16 iterations have passed, and, for comparison, after each run.
"""

import cProfile
import math
import sys
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.generation import Script, scripted_generation

REQUESTS = 5000
PROMPT_MEAN, OUTPUT_MEAN, LOG_SD = 1155, 211, 0.9
ITERATIONS_MAX = 16
BASE_BITS = 20


@dataclass(frozen=True, slots=True)
class Speed:
    """Result of one measurement; processor time, driver included."""

    requests: int
    iterations: int
    runs: int
    spent_s: float
    simulated_s: float


def main(arguments: list[str]) -> int:
    """Print the table."""
    print(f"{REQUESTS} requests to the end, on a full batch; one core")
    print("                             us/request  requests/s  iterations/s  iterations/run  simulated s")
    for model in ("mistral-7b", "llama-3-8b"):
        show(f"{model}, A100", serve(model))
        show(f"{model}, A100, collect each", serve(model, collect_each=True))
        show(f"{model}, A100, host KV 64 GB", serve(model, host_kv_bytes=64 * 10**9))
    if "--profile" in arguments:
        profile = cProfile.Profile()
        profile.runcall(serve, "mistral-7b")
        profile.print_stats("tottime")
    return 0


def show(what: str, speed: Speed) -> None:
    """Print a line."""
    print(
        f"{what:<28}{speed.spent_s / speed.requests * 1e6:11.1f}{speed.requests / speed.spent_s:12.0f}"
        f"{speed.iterations / speed.spent_s:14.0f}{speed.iterations / speed.runs:16.2f}"
        f"{speed.simulated_s:13.1f}"
    )


def serve(model: str, *, collect_each: bool = False, host_kv_bytes: int = 0) -> Speed:
    """Serve the requests with an engine and time it."""
    prompts, outputs = lengths(PROMPT_MEAN, 0), lengths(OUTPUT_MEAN, 1)
    engine = make_engine(model, outputs, host_kv_bytes)
    calls = [
        EngineCall(call_id=str(i), prompt_ids=(0,) * int(prompt), sampling=Sampling(max_tokens=int(output)))
        for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
    ]
    calls.reverse()
    started_s = time.process_time()
    now_ns = ended = iterations = runs = since = 0
    for _ in range(engine.capacity.seqs_max):
        engine.add(calls.pop(), now_ns)
    while (run := engine.plan(now_ns, ITERATIONS_MAX)) is not None:
        for emission in engine.commit(run.iterations):
            if emission.finish is not None:
                ended += 1
                if calls:
                    engine.add(calls.pop(), now_ns)
        now_ns = run.end_ns(run.iterations)
        iterations, runs, since = iterations + run.iterations, runs + 1, since + run.iterations
        if collect_each or since >= ITERATIONS_MAX:
            engine.collect()
            since = 0
    spent_s = time.process_time() - started_s
    assert ended == REQUESTS, f"{ended} of {REQUESTS} requests ended"
    return Speed(ended, iterations, runs, spent_s, now_ns / 1e9)


def lengths(mean: float, seed: int) -> NDArray[np.int64]:
    """Draw lengths of this mean: at least one token, at most six times the mean."""
    rng = np.random.default_rng(seed)
    drawn = rng.lognormal(math.log(mean) - LOG_SD**2 / 2, LOG_SD, REQUESTS)
    return np.clip(drawn.round(), 1, 6 * mean).astype(np.int64)


def make_engine(model: str, outputs: NDArray[np.int64], host_kv_bytes: int) -> BatchingEngine:
    """Build an engine with the profile's limits and known lengths."""
    profile = find_profile(builtin_profiles(), model, "A100")
    capacity = EngineCapacity(
        kv_tokens=profile.kv_tokens,
        block_tokens=profile.block_tokens,
        seqs_max=profile.seqs_max,
        context_tokens=min(profile.context_tokens, 8192),
    )
    scripts = [
        Script(output_tokens=int(tokens), base=number << BASE_BITS) for number, tokens in enumerate(outputs)
    ]
    start = scripted_generation(
        lambda call: scripts[int(call.call_id)],
        block_tokens=capacity.block_tokens,
        context_tokens=capacity.context_tokens,
    )
    return BatchingEngine(profile, capacity, start, host_kv_bytes=host_kv_bytes)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

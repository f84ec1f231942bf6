"""Logs of requests, drawn at random, and served by the engine model one iteration at a time."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.generation import Script, scripted_generation
from qlm.simulator.evaluation.request_log import RequestLog
from qlm.simulator.prefixes import UNSHARED


def drawn_log(requests: int, rate_rps: float, *, seed: int = 1, mean_tokens: int = 150) -> RequestLog:
    """Draw Poisson arrivals and log-normal lengths; nothing is served yet."""
    rng, now_s, rows = random.Random(seed), 0.0, []
    for _ in range(requests):
        prompt, output = (max(1, round(mean_tokens * rng.lognormvariate(-0.25, 0.7))) for _ in range(2))
        rows.append((round(now_s * 1e9), prompt, output))
        now_s += rng.expovariate(rate_rps)
    return log_of(rows)


def log_of(rows: Sequence[tuple[int, int, int]]) -> RequestLog:
    """Return the log of (arrival in nanoseconds, prompt, output); nothing is served yet."""
    columns = np.array(rows, dtype=np.int64)
    arrival_ns = columns[:, 0]
    return RequestLog(
        name="drawn",
        sha256="",
        lines=np.arange(2, len(rows) + 2),
        arrival_ns=arrival_ns,
        prompt_tokens=columns[:, 1],
        output_tokens=columns[:, 2],
        first_token_ns=arrival_ns,
        end_ns=arrival_ns,
        prefix=np.full(len(rows), UNSHARED),
        prefix_tokens=np.zeros(len(rows), dtype=np.int64),
    )


def served(log: RequestLog, profile: Profile) -> RequestLog:
    """Serve a log with `BatchingEngine.step`, which computes iterations one by one; prefixes play no part."""
    capacity = EngineCapacity(
        kv_tokens=profile.kv_tokens - profile.block_tokens,
        block_tokens=profile.block_tokens,
        seqs_max=profile.seqs_max,
        context_tokens=int((log.prompt_tokens + log.output_tokens).max()),
    )

    def script(call: EngineCall) -> Script:
        number = int(call.call_id)
        return Script(output_tokens=int(log.output_tokens[number]), base=number * capacity.kv_blocks)

    start = scripted_generation(
        script, block_tokens=capacity.block_tokens, context_tokens=capacity.context_tokens
    )
    engine = BatchingEngine(profile, capacity, start, batched_tokens_max=profile.batched_tokens_max)
    first: dict[int, int] = {}
    end: dict[int, int] = {}
    now_ns, coming = 0, 0
    while len(end) < len(log):
        while coming < len(log) and log.arrival_ns[coming] <= now_ns:
            sampling = Sampling(max_tokens=int(log.output_tokens[coming]), ignore_eos=True)
            prompt = (0,) * int(log.prompt_tokens[coming])
            engine.add(EngineCall(call_id=str(coming), prompt_ids=prompt, sampling=sampling), now_ns)
            coming += 1
        result = engine.step(now_ns)
        if result is None:
            now_ns = int(log.arrival_ns[coming])
            continue
        now_ns += result.duration_ns
        for emission in result.emissions:
            seen_ns = now_ns + profile.request_ns
            first.setdefault(int(emission.call_id), seen_ns)
            if emission.finish is not None:
                end[int(emission.call_id)] = seen_ns
    numbers = range(len(log))
    return replace(
        log,
        first_token_ns=np.array([first[number] for number in numbers]),
        end_ns=np.array([end[number] for number in numbers]),
    )


def write_csv(log: RequestLog, path: Path) -> None:
    """Write a log as CSV, in seconds."""
    rows = zip(
        log.arrival_ns / 1e9, log.prompt_tokens, log.output_tokens, log.first_token_ns / 1e9,
        log.end_ns / 1e9, strict=True,
    )  # fmt: skip
    lines = [f"{a:.9f},{p},{o},{f:.9f},{e:.9f}\n" for a, p, o, f, e in rows]
    path.write_text("arrival_s,prompt_tokens,output_tokens,first_token_s,end_s\n" + "".join(lines))

"""`python -m benchmarks batching`: duration of a decision of each batch policy.

Views are drawn from fixed seeds: a full KV cache, about half of the requests outside, readers of several
paces, deadlines and batch requests. Views limited by speed have iterations slower than the strictest reader.
Each policy has seen its view ten seconds before, so that nothing is skipped because of that.

It prints processor time of the thread over all decisions. On a busy machine that is noise in part: the last
column is the P99 over the views, each by its fastest decision. A numpy operation compares machines.
"""

import argparse
import gc
import random
import time
from math import inf
from typing import Final

import numpy as np

from qlm.agents.batching.policies.registry import POLICIES, batch_policy
from qlm.agents.batching.view import NO_READER, Floats, Place, View
from qlm.rct_estimator.profiles.iteration import IterationTime
from support.batch_views import MACHINE, PACE, Row, view

NOW_S: Final = 100.0
SIZES: Final = (64, 512)
VIEWS: Final = 40
ITERATION: Final = IterationTime(
    host_ms=0.2, linear_ms=((1, 10.6), (128, 14.0), (2048, 142.0)), kv_ms=1e-4, sequence_ms=0.02
)
"""Near an 8-billion-parameter model on one A100."""


def main(arguments: list[str] | None = None) -> int:
    """Print P50 and P99 of each registered policy."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="decisions of each view")
    parser.add_argument("--policy", choices=tuple(POLICIES), action="append")
    options = parser.parse_args(arguments)
    print(f"addition of 512 numbers: {_reference_us():.2f} us\n")
    print(
        f"{'policy':12} {'requests':>8} {'limited by':>10} {'P50 ms':>8} {'P99 ms':>8} {'P99 of fastest':>15}"
    )
    for name in options.policy or POLICIES:
        for requests in SIZES:
            for limit, step_s in (("memory", 0.02), ("speed", 0.3)):
                views = [drawn(requests, seed, step_s) for seed in range(VIEWS)]
                times_ms = _times_ms(name, views, options.rounds)
                p50, p99 = np.quantile(times_ms, (0.5, 0.99))
                fastest = np.quantile(times_ms.min(axis=0), 0.99)
                print(f"{name:12} {requests:8} {limit:>10} {p50:8.3f} {p99:8.3f} {fastest:15.3f}", flush=True)
    return 0


def drawn(requests: int, seed: int, step_s: float) -> View:
    """Draw a view of that many requests."""
    draw = random.Random(seed)
    machine = MACHINE._replace(
        iteration=ITERATION, kv_blocks=12 * requests, seqs_max=256, host_blocks=48 * requests
    )
    rows: list[Row] = []
    left = machine.kv_blocks
    for number in range(requests):
        row = _request(draw, str(number))
        takes = row.blocks_on(machine) or -(-(row.prompt + row.generated + 1) // machine.block_tokens)
        if takes <= left and draw.random() < 0.8:
            row.place, left = Place.INSIDE, left - takes
        elif draw.random() < 0.5:
            row.generated = 0
        else:
            row.host_tokens = max(0, row.prompt + row.generated - 1)
        rows.append(row)
    return view(*rows, now_s=NOW_S, machine=machine, pace=PACE._replace(step_s=step_s, requests=5000))


def _request(draw: random.Random, name: str) -> Row:
    kind, arrival_s, late_s = (
        draw.random(),
        NOW_S - 30 * draw.random(),
        draw.choice([0.0, 0.0, 0.0, 0.0, 3.0]),
    )
    rate = draw.choice([3.3, 4.8, 10.0]) if kind < 0.7 else NO_READER
    generated = draw.randrange(300)
    return Row(
        name,
        arrival_s=arrival_s,
        prompt=1 + int(draw.lognormvariate(5.0, 0.8)),
        generated=generated,
        rate=rate,
        ttft_s=1.0 if kind < 0.7 else inf,
        late_s=late_s,
        late_sum_s=late_s * generated,
        deadline_s=arrival_s + 20 if 0.7 <= kind < 0.9 else inf,
        left_mean=float(draw.randrange(1, 300)),
    )


def _times_ms(name: str, views: list[View], rounds: int) -> Floats:
    """Return the times of decisions, shape (rounds, views); a first round, to warm up, does not count."""
    times_ms = []
    gc.disable()
    for _ in range(1 + rounds):
        for each in views:
            policy = batch_policy(name)
            policy.decide(each._replace(now_s=NOW_S - 10))
            begin_ns = time.thread_time_ns()
            policy.decide(each)
            times_ms.append((time.thread_time_ns() - begin_ns) / 1e6)
    gc.enable()
    return np.reshape(times_ms, (1 + rounds, len(views)))[1:]


def _reference_us() -> float:
    numbers = np.arange(512.0)
    begin_ns = time.thread_time_ns()
    for _ in range(10_000):
        np.add(numbers, numbers)
    return (time.thread_time_ns() - begin_ns) / 1e7

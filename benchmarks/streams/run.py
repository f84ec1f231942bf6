"""Streams through QLM and straight to the same emulated engine, by turns.

Loads are bursts, STREAMSxTOKENS at 500 starts per second, or open loops, RATE/s:TOKENS with Poisson arrivals.
With `+chat` behind them they are chats of plain text, with `+call` chats whose answer calls a tool, made
by the emulated render tier within QLM; neither is played on the engine and on proxies, which have no chats.
Each run plays every load on every server in turn, with equal requests, from a client that costs little. Read
the runs in pairs: neighbours on the machine change all figures.

The figures are the time to the first event and between events, tokens per event, and processor seconds per
1 000 tokens of each process, which are the steadiest. With `--from`, another version of QLM takes its turns.
The arms are QLM in one process (`qlm`, the default), with gateway `workers`, on RabbitMQ and Redis
(`servers`), the `floor`, a minimal proxy, and LiteLLM's proxy (`litellm`, installed by `make clients`). With
`--vllm` the engine is a vLLM on the CPU with a tiny model, alone and behind QLM, whose render tier is vLLM's
own, a process apart.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import setups
from benchmarks.streams.load import TEXT, Load, parse_load
from benchmarks.streams.measure import Measured, measure
from benchmarks.streams.servers import (
    DIRECT,
    EMBEDDED,
    FLOOR,
    LITELLM,
    MODEL,
    SERVERS,
    WORKERS,
    Arm,
    emulated_arms,
    vllm_arms,
)

LOADS: Final = ("20/s:32", "200x200", "100/s:4")


def main(argv: Sequence[str]) -> int:
    """Measure, print a table and save it."""
    parser = argparse.ArgumentParser(prog='make bench ARGS="streams"', description=__doc__)
    parser.add_argument("--load", type=parse_load, action="append", help=f"default: {' '.join(LOADS)}")
    parser.add_argument("--arm", choices=(EMBEDDED, WORKERS, SERVERS, FLOOR, LITELLM), action="append")
    parser.add_argument("--workers", type=int, default=1, help="gateway workers of the arm of that name")
    parser.add_argument("--from", dest="source", help="wheel or revision with turns of its own, embedded")
    parser.add_argument("--vllm", action="store_true", help="a vLLM on the CPU, alone and behind QLM")
    parser.add_argument(
        "--time-scale", type=float, default=1.0, help="seconds per second of emulated engines"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of an open loop")
    parser.add_argument("--out", type=Path, default=Path("build/streams.json"))
    options = parser.parse_args(argv)
    loads: list[Load] = options.load or [parse_load(text) for text in LOADS]
    print(f"machine: {setups.machine()}", flush=True)
    found: dict[str, dict[str, list[Measured]]] = {}
    made = (
        vllm_arms()
        if options.vllm
        else emulated_arms(options.arm or [EMBEDDED], options.source, options.workers, options.time_scale)
    )
    with made as arms:
        _warm_up(arms)
        for load in loads:
            no_chats = () if options.vllm else (DIRECT, FLOOR, LITELLM)
            played = [each for each in arms if load.kind == TEXT or each.name not in no_chats]
            rows = found[load.name] = {arm.name: [] for arm in played}
            for run in range(options.runs):
                requests = load.requests(MODEL, options.seconds, run)
                for arm in played[run % len(played) :] + played[: run % len(played)]:
                    one = measure(arm.port, requests, load.tokens, arm.groups)
                    rows[arm.name].append(one)
                    print(_line(f"{load.name} run {run + 1}", arm.name, [one]), flush=True)
    print("medians")
    for name, rows in found.items():
        for arm_name, runs in rows.items():
            print(_line(name, arm_name, runs))
    plain = {
        name: {arm: list(map(asdict, runs)) for arm, runs in rows.items()} for name, rows in found.items()
    }
    setups.save(options.out, {"machine": setups.machine(), "loads": plain})
    print(f"written to {options.out}")
    return 0


def _warm_up(arms: Sequence[Arm]) -> None:
    load = parse_load("40x20")
    for arm in arms:
        measure(arm.port, load.requests(MODEL, 0.0, -1), load.tokens, arm.groups)


def _line(load: str, arm: str, runs: Sequence[Measured]) -> str:
    def mid(name: str) -> float:
        return float(median(getattr(one, name) for one in runs))

    used = {name: median(one.processor_s[name] for one in runs) for name in runs[0].processor_s}
    per_request = runs[0].tokens / runs[0].requests
    times = f"TTFT {mid('ttft_p50_ms'):7.1f} P95 {mid('ttft_p95_ms'):7.1f}"
    gaps = f"gap {mid('gap_p50_ms'):6.1f} P99 {mid('gap_p99_ms'):6.1f} longest {mid('gap_max_ms'):6.1f} ms"
    processes = ", ".join(
        f"{name} {each:.3f} ({each * per_request:.2f} ms/request)" for name, each in used.items()
    )
    return (
        f"{load:<16}{arm:<8}{times}, {gaps}, {mid('tokens_per_event'):.2f} tokens/event; "
        f"processor s per 1000 tokens: {processes}"
    )

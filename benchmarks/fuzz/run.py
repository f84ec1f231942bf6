"""`make bench ARGS="fuzz"`: malformed requests at a real QLM with an emulated engine.

HTTP requests with mutated bodies, headers, methods, targets and framing, and gRPC calls with mutated or
random
messages, at a steady rate. A well-behaved client in another process sends requests first alone, then beside
them. A finding is a 5xx without cause, an answer of another shape or to another prompt, a traceback in a log,
a process that ended, memory more than 20 % over its level after warm-up, or a P99 of the well-behaved client
of more than twice its P99 alone. Each names the request that shows it again.

A request is a function of the seed and its number. `--resume` goes on after the last number of the run that
was saved; `--only http:NUMBER` sends one, and prints it with its answer. Exits with 1 if there is a finding.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from benchmarks import setups
from benchmarks.fuzz.play import Play, show
from benchmarks.fuzz.progress import Progress, load
from benchmarks.setups import Running
from benchmarks.steady import SteadyClients
from support.ports import free_port

MODEL: Final = "mistral-7b"
RESULTS_MAX: Final = 2000
"""Answers kept; few, so that memory has a level soon."""


def main(arguments: Sequence[str]) -> int:
    """Run, print the findings, and save the progress."""
    options = _options(arguments)
    out = options.out or Path(f"build/fuzz-{options.seed}{'-servers' if options.servers else ''}.json")
    progress = load(out, options.seed, resumed=options.resume)
    port = free_port()
    more = {"grpc": {"port": port}, "results": {"kept_max": RESULTS_MAX}}
    print(f"machine: {setups.machine()}; seed {options.seed}", flush=True)
    with (
        setups.fixed_engine() as engine,
        setups.qlm_running(engine, servers=options.servers, more=more) as qlm,
        tempfile.TemporaryDirectory(prefix="qlm-fuzz-") as folder,
    ):
        rpc = f"127.0.0.1:{port}"
        if options.only is not None:
            return uvloop.run(show(qlm, rpc, options.seed, options.only))
        uvloop.run(_run(qlm, rpc, options, progress, Path(folder) / "steady.jsonl"))
    setups.save(out, progress.plain())
    print(progress.report(_again(options)), f"\nwritten to {out}", sep="", flush=True)
    return 1 if progress.findings else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='make bench ARGS="fuzz"', description=__doc__)
    parser.add_argument("--servers", action="store_true", help="RabbitMQ and Redis, not the embedded queue")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--http", type=int, default=100_000, help="HTTP requests in all")
    parser.add_argument("--rpc", type=int, default=20_000, help="gRPC calls in all")
    parser.add_argument("--rate", type=float, default=250.0, help="requests per second")
    parser.add_argument("--warm-up", type=int, default=5000, help="requests of a run until its memory counts")
    parser.add_argument(
        "--steady-rate", type=float, default=20.0, help="requests per second of the well-behaved client"
    )
    parser.add_argument("--alone-seconds", type=float, default=30.0, help="time for which it is alone")
    parser.add_argument("--resume", action="store_true", help="go on after the last request that was saved")
    parser.add_argument("--seconds", type=float, help="end after this time, to be resumed later")
    parser.add_argument("--only", help="send http:NUMBER or rpc:NUMBER alone")
    parser.add_argument("--out", type=Path, help="file of the progress")
    return parser.parse_args(arguments)


def _again(options: argparse.Namespace) -> str:
    return f'make bench ARGS="fuzz{" --servers" if options.servers else ""} --seed {options.seed} --only'


async def _run(qlm: Running, rpc: str, options: argparse.Namespace, progress: Progress, file: Path) -> None:
    steady = SteadyClients(qlm.url, MODEL, options.steady_rate, file)
    try:
        await asyncio.sleep(2)  # its first requests open connections and warm all parts up
        alone_s = time.monotonic()
        await asyncio.sleep(options.alone_seconds)
        beside_s = time.monotonic()
        async with Play(qlm, rpc, progress, options.rate) as play:
            await play.run(options.http, options.rpc, options.warm_up, options.seconds)
        over_s = time.monotonic()
    finally:
        await asyncio.to_thread(steady.end)
    progress.compare(steady.answers(alone_s, beside_s), steady.answers(beside_s, over_s))

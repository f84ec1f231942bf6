"""Streams through QLM and straight to the same emulated engine, by turns.

Loads are bursts, STREAMSxTOKENS at 500 starts per second, or open loops, RATE/s:TOKENS with Poisson arrivals.
With `+chat` behind them they are chats of plain text, with `+call` chats whose answer calls a tool, made
by the emulated render tier within QLM; neither is played on the engine and the floor, which have no chats.
Each run plays every load on every server in turn, with equal requests, from a client that costs little. Read
the runs in pairs: neighbours on the machine change all figures.

The figures are the time to the first event and between events, tokens per event, and processor seconds per
1 000 tokens of each process, which are the steadiest. With `--from`, another version of QLM takes its turns.
The arms are QLM in one process (`qlm`, the default), with gateway `workers`, on RabbitMQ and Redis, and the
`floor`, a minimal proxy.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

from benchmarks import setups
from benchmarks.streams.load import TEXT, Load, parse_load
from benchmarks.streams.measure import Measured, measure
from benchmarks.upgrade.release import installed
from support.emulated_engine import engine_command
from support.ports import free_port
from support.process import ServerProcess
from support.qlm_process import QLM, QlmProcess
from support.rabbitmq import running_rabbitmq
from support.redis import running_redis

DIRECT, EMBEDDED, WORKERS, SERVERS, FLOOR = "direct", "qlm", "workers", "servers", "floor"
LOADS: Final = ("20/s:32", "200x200", "100/s:4")
SEQS_MAX: Final = 1024
_MODEL: Final = "streamed"
_PLANS: Final = "the plan generator plans from now on"
_PARTS: Final = (("gateway",), ("controller",), ("agent", "i0"))


@dataclass(frozen=True, slots=True)
class Arm:
    """A server under test: its port, and its process groups by name."""

    name: str
    port: int
    groups: dict[str, int]


def main(argv: Sequence[str]) -> int:
    """Measure, print a table and save it."""
    parser = argparse.ArgumentParser(prog='make bench ARGS="streams"', description=__doc__)
    parser.add_argument("--load", type=parse_load, action="append", help=f"default: {' '.join(LOADS)}")
    parser.add_argument("--arm", choices=(EMBEDDED, WORKERS, SERVERS, FLOOR), action="append")
    parser.add_argument("--workers", type=int, default=1, help="gateway workers of the arm of that name")
    parser.add_argument("--from", dest="source", help="wheel or revision with turns of its own, embedded")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of an open loop")
    parser.add_argument("--out", type=Path, default=Path("build/streams.json"))
    options = parser.parse_args(argv)
    loads: list[Load] = options.load or [parse_load(text) for text in LOADS]
    print(f"machine: {setups.machine()}", flush=True)
    found: dict[str, dict[str, list[Measured]]] = {}
    with _arms(options.arm or [EMBEDDED], options.source, options.workers) as arms:
        _warm_up(arms)
        for load in loads:
            played = [each for each in arms if load.kind == TEXT or each.name not in (DIRECT, FLOOR)]
            rows = found[load.name] = {arm.name: [] for arm in played}
            for run in range(options.runs):
                requests = load.requests(_MODEL, options.seconds, run)
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
        measure(arm.port, load.requests(_MODEL, 0.0, -1), load.tokens, arm.groups)


def _line(load: str, arm: str, runs: Sequence[Measured]) -> str:
    def mid(name: str) -> float:
        return float(median(getattr(one, name) for one in runs))

    used = {name: median(one.processor_s[name] for one in runs) for name in runs[0].processor_s}
    per_request = runs[0].tokens / runs[0].requests
    times = f"TTFT {mid('ttft_p50_ms'):7.1f} P95 {mid('ttft_p95_ms'):7.1f}"
    gaps = f"gap {mid('gap_p50_ms'):6.1f} P99 {mid('gap_p99_ms'):6.1f} ms"
    processes = ", ".join(
        f"{name} {each:.3f} ({each * per_request:.2f} ms/request)" for name, each in used.items()
    )
    return (
        f"{load:<16}{arm:<8}{times}, {gaps}, {mid('tokens_per_event'):.2f} tokens/event; "
        f"processor s per 1000 tokens: {processes}"
    )


@contextlib.contextmanager
def _arms(names: Sequence[str], source: str | None, workers: int) -> Iterator[list[Arm]]:
    """Run the servers, each with an engine of its own; direct comes first."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qlm-streams-")))
        engine = _engine(stack, folder / DIRECT)
        arms = [Arm(DIRECT, engine[0], {"engine": engine[1]})]
        if source:
            arms.append(_qlm(stack, folder / "from", "former", EMBEDDED, installed(source).qlm))
        for name in names:
            at, http = folder / name, {"workers": workers} if name == WORKERS else {}
            arms.append(_floor(stack, at) if name == FLOOR else _qlm(stack, at, name, name, QLM, http))
        yield arms


def _engine(stack: contextlib.ExitStack, folder: Path) -> tuple[int, int]:
    """Start an engine; return its port and process group."""
    folder.mkdir()
    port = free_port()
    command = engine_command(port, _MODEL, seqs_max=SEQS_MAX)
    engine = ServerProcess("engine", command, env=dict(os.environ), folder=folder)
    stack.callback(engine.kill)
    engine.start()
    engine.wait_ready(lambda: "ready on" in engine.log_file.read_text(), timeout_s=60)
    return port, engine.pid


def _floor(stack: contextlib.ExitStack, folder: Path) -> Arm:
    """Start the minimal proxy, with an engine of its own."""
    engine_port, engine_group = _engine(stack, folder)
    port = free_port()
    script = Path(__file__).with_name("floor.py")
    command = [sys.executable, str(script), str(port), f"http://127.0.0.1:{engine_port}"]
    proxy = ServerProcess("floor", command, env=dict(os.environ), folder=folder)
    stack.callback(proxy.kill)
    proxy.start()
    proxy.wait_ready(lambda: "ready" in proxy.log_file.read_text(), timeout_s=60)
    return Arm(FLOOR, port, {"engine": engine_group, "floor": proxy.pid})


def _qlm(
    stack: contextlib.ExitStack,
    folder: Path,
    name: str,
    kind: str,
    program: Path,
    http: Mapping[str, Any] = MappingProxyType({}),
) -> Arm:
    engine_port, engine_group = _engine(stack, folder)
    instance = {
        "id": "i0", "accelerator": "A100", "models": [_MODEL],
        "url": f"http://127.0.0.1:{engine_port}", "seqs_max": SEQS_MAX,
    }  # fmt: skip
    config: dict[str, Any] = {
        "models": [{"id": _MODEL, "profile": "mistral-7b", "context_tokens": 4096}],
        "instances": [instance],
    }
    commands: Sequence[tuple[str, ...]] = (("serve",),)
    if kind == SERVERS:
        commands = _PARTS
        config |= {"broker": stack.enter_context(running_rabbitmq()).url}
        config |= {"store": stack.enter_context(running_redis()).url}
    groups = {"engine": engine_group}
    started = []
    for command in commands:
        whole = config | {
            "data_dir": str(folder / f"data-{command[0]}"),
            "http": {"port": free_port(), **http},
        }
        process = QlmProcess(command[0], *command, config=whole, folder=folder, program=program)
        stack.callback(process.close)
        process.start()
        started.append(process)
        groups[command[0]] = process.pid
    started[0].wait_ready(instances=1)
    planning = next(each for each in started if each.name in ("serve", "controller"))
    while _PLANS not in planning.log_file.read_text("utf-8"):  # its code may be compiled first
        time.sleep(0.1)
    return Arm(name, started[0].port, groups)

"""`make bench ARGS="backlog"`: urgent requests while very many others wait, and after a crash.

One emulated A100 with 16 places, in real time. Asynchronous requests without objective fill them and wait.
With a few of them, then with all, urgent requests are sent one after the other, each streamed, with an
objective of two seconds for its first token. Then every process of QLM is killed (SIGKILL) and started again:
measured are the times until it is ready and until an urgent request, repeated until it is accepted, has its
first token. On the embedded queue, and on RabbitMQ and Redis.

Exits with 1 if an urgent request misses its objective before the crash.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import uvloop

from benchmarks import setups
from benchmarks.load import client
from benchmarks.setups import Running
from support.emulated_engine import engine_command
from support.ports import free_port
from support.process import ServerProcess

MODEL: Final = "mistral-7b"
ROUTE: Final = "/v1/completions"
SEQS_MAX: Final = 16
FEW: Final = 1_000
TTFT_S: Final = 2.0
SENDERS: Final = 64
TRIES: Final = 30
RETRY_S: Final = 0.05
READY_S_MAX: Final = 300.0

FIRST_TOKEN_S_MAX: Final = 60.0
"""Longest wait for a first token; one that takes longer counts as this, and its client leaves."""

BODY: Final[dict[str, Any]] = {
    "model": MODEL, "prompt": [65] * 128, "max_tokens": 1000, "temperature": 0, "ignore_eos": True
}  # fmt: skip
URGENT: Final[dict[str, Any]] = BODY | {"max_tokens": 8, "stream": True, "slo": {"ttft_ms": 1000 * TTFT_S}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """Times to the first token of urgent requests by the number that waited, and after a crash; seconds.

    `FIRST_TOKEN_S_MAX` stands for anything from there on.
    """

    few_s: list[float]
    all_s: list[float]
    accepts_rps: float
    ready_s: float
    first_after_crash_s: float
    after_crash_s: list[float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both setups, print and save their times."""
    parser = argparse.ArgumentParser(prog='make bench ARGS="backlog"', description=__doc__)
    parser.add_argument("--waiting", type=int, default=104_000, help="requests that wait")
    parser.add_argument("--urgent", type=int, default=20, help="urgent requests of each measurement")
    parser.add_argument("--setup", choices=("embedded", "servers"), help="only this one")
    parser.add_argument("--out", type=Path, default=Path("build/bench-backlog.json"))
    options = parser.parse_args(arguments)
    print(f"machine: {setups.machine()}\n", flush=True)
    result: dict[str, Any] = {"machine": setups.machine(), "waiting": options.waiting}
    missed = False
    for setup in (options.setup,) if options.setup else ("embedded", "servers"):
        limits = {"limits": {"queue_depth_max": 10 * options.waiting}}
        with (
            _engine() as engine,
            setups.qlm_running(engine, servers=setup == "servers", seqs_max=SEQS_MAX, more=limits) as qlm,
        ):
            times = uvloop.run(_measure(qlm, options.waiting, options.urgent))
        result[setup] = asdict(times)
        _print(setup, times, options.waiting)
        missed = missed or max(times.few_s + times.all_s) > TTFT_S
    setups.save(options.out, result)
    print(f"written to {options.out}")
    return int(missed)


@contextmanager
def _engine() -> Iterator[str]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qlm-bench-")))
        port = free_port()
        argv = engine_command(port, MODEL, seqs_max=SEQS_MAX)
        engine = ServerProcess("engine", argv, env=setups.environment(), folder=folder)
        engine.start()
        stack.callback(engine.kill)
        engine.wait_ready(lambda: setups.answers(f"http://127.0.0.1:{port}/health"), timeout_s=30)
        yield f"http://127.0.0.1:{port}"


async def _measure(qlm: Running, waiting: int, urgent: int) -> Times:
    async with client(timeout_s=READY_S_MAX) as session:
        await _fill(session, qlm.url, FEW)
        few_s = [await _first_token_s(session, qlm.url) for _ in range(urgent)]
        began_s = time.perf_counter()
        await _fill(session, qlm.url, waiting - FEW)
        accepts_rps = (waiting - FEW) / (time.perf_counter() - began_s)
        all_s = [await _first_token_s(session, qlm.url) for _ in range(urgent)]
        for process in qlm.processes:
            process.kill()
        began_s = time.perf_counter()
        for process in qlm.processes:
            process.start()
        ready = asyncio.create_task(asyncio.to_thread(_ready_s, qlm, began_s))
        first_s = await _accepted_first_token_s(session, qlm.url, began_s)
        ready_s = await ready
        after_s = [await _first_token_s(session, qlm.url) for _ in range(urgent)]
    return Times(
        few_s=few_s,
        all_s=all_s,
        accepts_rps=accepts_rps,
        ready_s=ready_s,
        first_after_crash_s=first_s,
        after_crash_s=after_s,
    )


async def _fill(session: aiohttp.ClientSession, url: str, requests: int) -> None:
    """Let requests wait; each is accepted when this returns."""
    left = iter(range(requests))

    async def sender() -> None:
        for n in left:
            await _accept(session, url)
            if n % 10_000 == 0 and sys.stdout.isatty():
                print(f"  {n} accepted", flush=True)

    await asyncio.gather(*(sender() for _ in range(SENDERS)))


async def _accept(session: aiohttp.ClientSession, url: str) -> None:
    """Let a request wait, in several tries if a server is away."""
    for tries_left in reversed(range(TRIES)):
        async with session.post(url + ROUTE, json=BODY, headers={"Prefer": "respond-async"}) as answer:
            text = await answer.text()
        if answer.status == 202:
            return
        if answer.status != 503 or not tries_left:
            raise RuntimeError(f"answered {answer.status}: {text[:200]}")
        await asyncio.sleep(1.0)


async def _first_token_s(session: aiohttp.ClientSession, url: str) -> float:
    """Send an urgent request; return the time to its first token, `FIRST_TOKEN_S_MAX` at most."""
    began_s = time.perf_counter()
    async with session.post(url + ROUTE, json=URGENT) as answer:
        if answer.status != 200:
            raise RuntimeError(f"answered {answer.status}: {(await answer.text())[:200]}")
        try:
            async with asyncio.timeout(FIRST_TOKEN_S_MAX):
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        break
        except TimeoutError:
            return FIRST_TOKEN_S_MAX
        first_s = time.perf_counter() - began_s
        await answer.read()
    return first_s


async def _accepted_first_token_s(session: aiohttp.ClientSession, url: str, began_s: float) -> float:
    """Repeat an urgent request until it is accepted; return the time from `began_s` to its first token."""
    while time.perf_counter() - began_s < READY_S_MAX:
        sent_s = time.perf_counter()
        try:
            return sent_s - began_s + await _first_token_s(session, url)
        except (aiohttp.ClientError, RuntimeError):
            await asyncio.sleep(RETRY_S)
    raise RuntimeError(f"no urgent request was accepted within {READY_S_MAX:g} s of the start")


def _ready_s(qlm: Running, began_s: float) -> float:
    qlm.processes[0].wait_ready(instances=1, timeout_s=READY_S_MAX)
    return time.perf_counter() - began_s


def _print(setup: str, times: Times, waiting: int) -> None:
    print(f"{setup}: {times.accepts_rps:.0f} accepted per second; first token of an urgent request, s:")
    for count, seconds in (
        (f"{FEW}", times.few_s),
        (f"{waiting}", times.all_s),
        ("after a crash", times.after_crash_s),
    ):
        print(f"  {count:>14} waiting: median {statistics.median(seconds):6.3f}, longest {max(seconds):6.3f}")
    print(
        f"  after SIGKILL of all parts: ready after {times.ready_s:.1f} s, "
        f"first token of an urgent request after {times.first_after_crash_s:.1f} s\n",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())

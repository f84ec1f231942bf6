"""Cost of many different objectives: `make bench ARGS="classes"`.

Two clusters of one kind, side by side: the clients of one draw from 100 objectives, those of the other from
100 000 without repetition. They are sent requests for one token by turns, so that other load of the machine
meets both. Measured are the time until all requests of a turn are answered, the processor time of QLM's
processes, and the commands that Redis executes, each as the median of the turns; the queues in the broker;
then the same of idle clusters, and the time of a single request before and after.
"""

import argparse
import asyncio
import contextlib
import itertools
import random
import sqlite3
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import redis
import uvloop

from benchmarks import setups
from benchmarks.load import client
from benchmarks.processor_time import group_s
from benchmarks.setups import Running
from qlm.planner.warm_up import warm_up
from support.cluster_load import depths

FEW, MANY = 100, 100_000
TTFT_MS: Final = (500.0, 60_000.0)
TPOT_MS: Final = (10.0, 1000.0)
ALONE: Final = 40
"""Single requests of which the median counts."""
BODY: Final[dict[str, Any]] = {"model": "mistral-7b", "prompt": [65] * 16, "max_tokens": 1, "temperature": 0}


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of one cluster: of each turn, while it is idle, and of single requests."""

    drain_s: list[float]
    processor_ms_per_request: list[float]
    redis_per_request: list[float]
    queues: int
    idle_share_of_core: float
    idle_redis_per_s: float
    alone_before_ms: float
    alone_after_ms: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both clusters on both brokers, and print the comparison."""
    parser = argparse.ArgumentParser(prog='make bench ARGS="classes"', description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="requests of a turn")
    parser.add_argument("--turns", type=int, default=5, help="turns of each cluster")
    parser.add_argument("--setup", choices=("embedded", "servers"), help="only this one")
    parser.add_argument(
        "--settle-seconds", type=float, default=35.0, help="time until empty groups are closed"
    )
    parser.add_argument("--idle-seconds", type=float, default=10.0, help="time of the idle measurement")
    parser.add_argument("--out", type=Path, default=Path("build/bench-classes.json"))
    options = parser.parse_args(arguments)
    print(f"machine: {setups.machine()}\n", flush=True)
    warm_up()  # or the first cluster would compile the planner
    result: dict[str, Any] = {"machine": setups.machine(), "requests": options.requests}
    for servers in (False, True):
        if options.setup in (None, "servers" if servers else "embedded"):
            arm = "RabbitMQ + Redis" if servers else "embedded"
            found = _compare(servers=servers, options=options)
            result[arm] = [asdict(costs) for costs in found]
            _print(arm, *found)
    setups.save(options.out, result)
    print(f"written to {options.out}")
    return 0


def _compare(*, servers: bool, options: argparse.Namespace) -> tuple[Costs, Costs]:
    """Run both clusters, and return their costs."""
    with contextlib.ExitStack() as stack:
        clusters = []
        for objectives in (FEW, MANY):
            engine = stack.enter_context(setups.fixed_engine())
            qlm = stack.enter_context(setups.qlm_running(engine, servers=servers))
            clusters.append(Measured(qlm, itertools.cycle(_slos(objectives))))
        return uvloop.run(_measure(clusters[0], clusters[1], options))


def _slos(objectives: int) -> list[dict[str, float]]:
    """Draw that many different objectives, evenly on logarithmic scales, of which none is refused."""
    rng = random.Random(objectives)
    ranges = (TTFT_MS, TPOT_MS)
    drawn = ([low * (high / low) ** rng.random() for low, high in ranges] for _ in range(objectives))
    return [{"ttft_ms": ttft_ms, "tpot_ms": tpot_ms} for ttft_ms, tpot_ms in drawn]


class Measured:
    """A cluster under measurement, and the objectives of its clients."""

    def __init__(self, qlm: Running, slos: Iterator[dict[str, float]]) -> None:
        """Begin without a measurement."""
        self.qlm = qlm
        self._slos = slos
        self._drain_s: list[float] = []
        self._processor_ms: list[float] = []
        self._redis: list[float] = []

    async def turn(self, session: aiohttp.ClientSession, requests: int) -> None:
        """Send the requests of a turn, and measure until all are answered."""
        slos = list(itertools.islice(self._slos, requests))
        began_s, processor_s, commands = time.perf_counter(), _processor_s(self.qlm), _commands(self.qlm)
        await _drain(session, self.qlm.url, slos)
        self._drain_s.append(time.perf_counter() - began_s)
        self._processor_ms.append(1000 * (_processor_s(self.qlm) - processor_s) / requests)
        self._redis.append((_commands(self.qlm) - commands) / requests)

    async def idle(self, seconds: float) -> tuple[float, float]:
        """Return the share of a core, and the commands of Redis per second, over a time without requests."""
        processor_s, commands = _processor_s(self.qlm), _commands(self.qlm)
        await asyncio.sleep(seconds)
        return (_processor_s(self.qlm) - processor_s) / seconds, (_commands(self.qlm) - commands) / seconds

    def costs(self, queues: int, idle: tuple[float, float], alone_ms: tuple[float, float]) -> Costs:
        """Return the costs of all turns, and those measured beside."""
        return Costs(
            drain_s=self._drain_s,
            processor_ms_per_request=self._processor_ms,
            redis_per_request=self._redis,
            queues=queues,
            idle_share_of_core=idle[0],
            idle_redis_per_s=idle[1],
            alone_before_ms=alone_ms[0],
            alone_after_ms=alone_ms[1],
        )


async def _measure(few: Measured, many: Measured, options: argparse.Namespace) -> tuple[Costs, Costs]:
    clusters = (few, many)
    async with client(timeout_s=300) as session:
        before_ms = [await _alone_ms(session, each.qlm.url) for each in clusters]
        for turn in range(options.turns):
            for each in clusters if turn % 2 == 0 else clusters[::-1]:
                await each.turn(session, options.requests)
        after_ms = [await _alone_ms(session, each.qlm.url) for each in clusters]
        queues = [_queues(each.qlm) for each in clusters]
        await asyncio.sleep(options.settle_seconds)
        idle = await asyncio.gather(*(each.idle(options.idle_seconds) for each in clusters))
    found = [each.costs(queues[n], idle[n], (before_ms[n], after_ms[n])) for n, each in enumerate(clusters)]
    return found[0], found[1]


async def _drain(session: aiohttp.ClientSession, url: str, slos: list[dict[str, float]]) -> None:
    """Send one request per objective, 256 at a time, and wait for all answers."""
    left = iter(slos)

    async def worker() -> None:
        for slo in left:
            await _post(session, url, BODY | {"slo": slo})

    await asyncio.gather(*(worker() for _ in range(256)))


async def _alone_ms(session: aiohttp.ClientSession, url: str) -> float:
    times_ms = []
    for _ in range(ALONE):
        began_s = time.perf_counter()
        await _post(session, url, BODY)
        times_ms.append(1000 * (time.perf_counter() - began_s))
    return statistics.median(times_ms)


async def _post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        text = await answer.text()
        if answer.status != 200:
            raise RuntimeError(f"a request was answered {answer.status}: {text[:200]}")


def _processor_s(qlm: Running) -> float:
    return sum(group_s(group) for group in qlm.groups)


def _commands(qlm: Running) -> float:
    """Return the commands that Redis has executed, those in scripts included."""
    if "store" not in qlm.servers:
        return 0.0
    with redis.Redis.from_url(qlm.servers["store"]) as server:
        return sum(float(each["calls"]) for each in server.info("commandstats").values())


def _queues(qlm: Running) -> int:
    if "broker" in qlm.servers:
        return len(depths(qlm.servers["broker"]))
    with sqlite3.connect(f"file:{next(qlm.data.glob('*.sqlite'))}?mode=ro", uri=True) as queue_file:
        return int(queue_file.execute("SELECT count(*) FROM queue").fetchone()[0])


def _print(arm: str, few: Costs, many: Costs) -> None:
    print(f"{arm:26} {FEW:>10} {MANY:>10}   ratio  (objectives; medians of the turns)")
    for name, value in asdict(few).items():
        other = getattr(many, name)
        turns = ""
        if isinstance(value, list):
            turns = "  " + " | ".join(" ".join(f"{each:.2f}" for each in some) for some in (value, other))
            value, other = statistics.median(value), statistics.median(other)
        ratio = f"{other / value:7.2f}" if value else "      -"
        print(f"  {name:26} {value:10.3f} {other:10.3f} {ratio}{turns}")
    print(flush=True)


if __name__ == "__main__":
    raise SystemExit(main())

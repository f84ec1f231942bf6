"""Cost of many different objectives: `make bench ARGS="classes"`.

Two clusters of one kind, one after the other: the clients of one draw from 100 objectives, those of the other
from 100 000. All requests ask for one token. Measured are the time until all are answered, the processor time
of QLM's processes, the commands that Redis executes and the queues in the broker; then the same of an idle
cluster, and the time of a single request before and after.
"""

import argparse
import asyncio
import itertools
import random
import sqlite3
import statistics
import time
from collections.abc import Sequence
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
    """Costs of one cluster: while it drains, while it is idle, and of single requests."""

    drain_s: float
    processor_ms_per_request: float
    redis_per_request: float
    queues: int
    idle_share_of_core: float
    idle_redis_per_s: float
    alone_before_ms: float
    alone_after_ms: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both clusters on both brokers, and print the comparison."""
    parser = argparse.ArgumentParser(prog='make bench ARGS="classes"', description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="requests of each cluster")
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
        arm = "RabbitMQ + Redis" if servers else "embedded"
        found = []
        for objectives in (FEW, MANY):
            with setups.fixed_engine() as engine, setups.qlm_running(engine, servers=servers) as qlm:
                work = _measure(qlm, _slos(objectives), options)
                found.append(uvloop.run(work))
        result[arm] = [asdict(costs) for costs in found]
        _print(arm, *found)
    setups.save(options.out, result)
    print(f"written to {options.out}")
    return 0


def _slos(objectives: int) -> list[dict[str, float]]:
    """Draw that many different objectives, evenly on logarithmic scales, of which none is refused."""
    rng = random.Random(objectives)
    ranges = (TTFT_MS, TPOT_MS)
    drawn = ([low * (high / low) ** rng.random() for low, high in ranges] for _ in range(objectives))
    return [{"ttft_ms": ttft_ms, "tpot_ms": tpot_ms} for ttft_ms, tpot_ms in drawn]


async def _measure(qlm: Running, slos: list[dict[str, float]], options: argparse.Namespace) -> Costs:
    requests, idle_s = options.requests, options.idle_seconds
    async with client(timeout_s=300) as session:
        before_ms = await _alone_ms(session, qlm.url)
        began_s, processor_s, commands = time.perf_counter(), _processor_s(qlm), _commands(qlm)
        await _drain(session, qlm.url, list(itertools.islice(itertools.cycle(slos), requests)))
        drain_s = time.perf_counter() - began_s
        processor_s, commands = _processor_s(qlm) - processor_s, _commands(qlm) - commands
        after_ms = await _alone_ms(session, qlm.url)
        queues = _queues(qlm)
        await asyncio.sleep(options.settle_seconds)
        idle_processor_s, idle_commands = _processor_s(qlm), _commands(qlm)
        await asyncio.sleep(idle_s)
        return Costs(
            drain_s=drain_s,
            processor_ms_per_request=1000 * processor_s / requests,
            redis_per_request=commands / requests,
            queues=queues,
            idle_share_of_core=(_processor_s(qlm) - idle_processor_s) / idle_s,
            idle_redis_per_s=(_commands(qlm) - idle_commands) / idle_s,
            alone_before_ms=before_ms,
            alone_after_ms=after_ms,
        )


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
    print(f"{arm:28} {FEW:>10} {MANY:>10}   ratio  (objectives)")
    for name, value in asdict(few).items():
        other = getattr(many, name)
        ratio = f"{other / value:7.2f}" if value else "      -"
        print(f"  {name:26} {value:10.3f} {other:10.3f} {ratio}")
    print(flush=True)


if __name__ == "__main__":
    raise SystemExit(main())

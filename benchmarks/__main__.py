"""`make bench`: latency that QLM adds, its saturation, and its rate of durable accepts.

All arms run side by side on one machine: open loop, equal Poisson arrivals, 16 tokens in and 16 out, not
streamed, an engine with a fixed latency of 50 ms.

`annealing`, `attainment`, `backlog`, `batch-beside`, `batching`, `classes`, `fidelity`, `fuzz`, `hang`,
`hostile`, `live-page`, `motion`, `overhead`, `planner`, `simulation`, `soak`, `streaming`,
`streaming-placed`, `streams`, `tasks`, `telemetry` or `waiting` as the first word runs that one instead
(each has --help).
"""

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import (
    annealing,
    attainment,
    backlog,
    batch_beside,
    batching,
    classes,
    controller_loop,
    fidelity,
    hang,
    hostile,
    live_page,
    planner,
    setups,
    simulation,
    streaming_mixed,
    streaming_placed,
    telemetry,
    waiting,
)
from benchmarks.fuzz import run as fuzz
from benchmarks.load import Sample, client, closed_loop, open_loop, poisson_arrivals
from benchmarks.motion import drawn
from benchmarks.overhead import run as overhead
from benchmarks.soak import run as soak
from benchmarks.streams import run as streams
from benchmarks.tasks import run as tasks

BODY: dict[str, Any] = {
    "model": "mistral-7b",
    "prompt": list(range(65, 81)),
    "max_tokens": 16,
    "temperature": 0,
    "ignore_eos": True,
}
RATES = (20, 50, 100, 200)
RAMP = (300, 400, 500, 600, 800, 1000, 1300)
OTHERS: dict[str, Callable[[list[str]], int]] = {
    "annealing": annealing.main,
    "attainment": attainment.main,
    "backlog": backlog.main,
    "batch-beside": batch_beside.main,
    "batching": batching.main,
    "classes": classes.main,
    "fidelity": fidelity.main,
    "fuzz": fuzz.main,
    "hang": hang.main,
    "hostile": hostile.main,
    "live-page": live_page.main,
    "loop": controller_loop.main,
    "motion": drawn.main,
    "overhead": overhead.main,
    "planner": planner.main,
    "simulation": simulation.main,
    "soak": soak.main,
    "streaming": streaming_mixed.main,
    "streaming-placed": streaming_placed.main,
    "streams": streams.main,
    "tasks": tasks.main,
    "telemetry": telemetry.main,
    "waiting": waiting.main,
}


def main() -> int:
    """Run all parts and print their tables, or run the benchmark that the first word names."""
    if len(sys.argv) > 1 and sys.argv[1] in OTHERS:
        return OTHERS[sys.argv[1]](sys.argv[2:])
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each measurement")
    parser.add_argument("--part", choices=("latency", "saturation", "accepts"), action="append")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args()
    parts = options.part or ["latency", "saturation", "accepts"]
    print(f"machine: {setups.machine()}\n", flush=True)
    result: dict[str, Any] = {"machine": setups.machine()}
    for servers in (False, True):
        arm = "RabbitMQ + Redis" if servers else "embedded SQLite"
        if {"latency", "saturation"} & set(parts):
            with setups.fixed_engine() as engine, setups.qlm_before(engine, servers=servers) as qlm:
                if "latency" in parts:
                    result[f"latency {arm}"] = uvloop.run(_latency(arm, engine, qlm, options.seconds))
                if "saturation" in parts:
                    result[f"saturation {arm}"] = uvloop.run(_saturation(arm, qlm, options.seconds / 2))
        if "accepts" in parts:
            with setups.gateway_alone(servers=servers) as qlm:
                result[f"accepts {arm}"] = uvloop.run(_accepts(arm, qlm, options.seconds / 2))
    setups.save(options.out, result)
    print(f"written to {options.out}")
    return 0


async def _latency(arm: str, engine: str, qlm: str, seconds: float) -> list[dict[str, float]]:
    print(f"time to the full answer, {arm}, ms")
    print(" req/s  direct P50     P95   QLM P50     P95  added P50     P95")
    rows = []
    async with client() as session:
        for rate in RATES:
            arrivals = poisson_arrivals(rate, seconds, seed=rate)
            direct = await open_loop(session, f"{engine}/v1/completions", BODY, arrivals)
            through = await open_loop(session, f"{qlm}/v1/completions", BODY, arrivals)
            rows.append(_row(rate, direct, through))
            await asyncio.sleep(0.5)
    print()
    return rows


def _row(rate: int, direct: Sample, through: Sample) -> dict[str, float]:
    row = {
        "rate_rps": float(rate),
        "direct_p50_ms": direct.quantile_ms(0.5),
        "direct_p95_ms": direct.quantile_ms(0.95),
        "qlm_p50_ms": through.quantile_ms(0.5),
        "qlm_p95_ms": through.quantile_ms(0.95),
        "added_p50_ms": through.quantile_ms(0.5) - direct.quantile_ms(0.5),
        "added_p95_ms": through.quantile_ms(0.95) - direct.quantile_ms(0.95),
        "failed": float(direct.failed + through.failed),
    }
    print(
        f"{rate:6} {row['direct_p50_ms']:11.1f} {row['direct_p95_ms']:7.1f} {row['qlm_p50_ms']:9.1f} "
        f"{row['qlm_p95_ms']:7.1f} {row['added_p50_ms']:10.1f} {row['added_p95_ms']:7.1f}"
        + (f"  {row['failed']:.0f} failed" if row["failed"] else ""),
        flush=True,
    )
    return row


async def _saturation(arm: str, qlm: str, seconds: float) -> dict[str, float]:
    """Raise the rate until an answer is over a second late or fails."""
    print(f"saturation, {arm}")
    sustained = 0.0
    async with client() as session:
        for rate in RAMP:
            sample = await open_loop(
                session, f"{qlm}/v1/completions", BODY, poisson_arrivals(rate, seconds, rate)
            )
            good = not sample.failed and sample.quantile_ms(1.0) < 1000
            note = f"  {sample.failed} failed" if sample.failed else ""
            print(f"{rate:6} offered {_shown(sample)}{note}{'' if good else '  saturated'}", flush=True)
            if not good:
                break
            sustained = sample.answered_rps
    print()
    return {"sustained_rps": sustained}


async def _accepts(arm: str, qlm: str, seconds: float) -> list[dict[str, float]]:
    """Measure 202 answers per second of one gateway process, each after the broker's confirm."""
    print(f"durable accepts of one gateway process, {arm}")
    rows = []
    async with client() as session:
        for concurrency in (1, 16, 64, 256):
            sample = await closed_loop(
                session,
                f"{qlm}/v1/completions",
                BODY,
                concurrency=concurrency,
                seconds=seconds,
                headers={"Prefer": "respond-async"},
                good_status=202,
            )
            print(f"{concurrency:6} at once {_shown(sample)}  {sample.failed} failed", flush=True)
            rows.append(
                {
                    "concurrency": float(concurrency),
                    "accepts_per_s": sample.answered_rps,
                    "p50_ms": sample.quantile_ms(0.5),
                    "p95_ms": sample.quantile_ms(0.95),
                }
            )
    print()
    return rows


def _shown(sample: Sample) -> str:
    times = f"P50 {sample.quantile_ms(0.5):7.1f}  P95 {sample.quantile_ms(0.95):7.1f} ms"
    return f"{sample.answered_rps:7.0f} answered/s  {times}"


if __name__ == "__main__":
    sys.exit(main())

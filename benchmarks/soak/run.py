"""`make bench ARGS="soak"`: steady load with short answers for a long time.

On the embedded queue, then on RabbitMQ and Redis: clients send 100 requests per second, most of them plain,
some streamed, some asynchronous, a few abandoned. After a warm-up, every process is read at intervals:
memory, descriptors, threads, files; and queues and keys. At the end all requests end, and nothing may be left
of them but the ended requests that are kept.

A figure drifts if the slope of Theil and Sen, over the whole measured time, is more than 5 % of its median.
Of files on the disk that is the lowest size in each span of two minutes: a server fills its journal, then
drops it at once. Exits with 1 if memory, descriptors, threads, disk or latency drift upwards, an answer is
wrong, or something is left.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import setups
from benchmarks.setups import Running
from benchmarks.soak.left import wait_for_nothing
from benchmarks.soak.report import draw, report
from benchmarks.soak.samples import Sample, sample
from benchmarks.steady import SteadyClients, quantile_ms
from qlm.planner.warm_up import warm_up

MODEL: Final = "mistral-7b"
_MORE_DESCRIPTORS: Final = 64


def main(arguments: Sequence[str]) -> int:
    """Run on each setup, print the tables, and save the readings."""
    options = _options(arguments)
    print(f"machine: {setups.machine()}\n", flush=True)
    warm_up()
    result: dict[str, Any] = {"machine": setups.machine()}
    wrong: list[str] = []
    for servers in (False, True):
        arm = "RabbitMQ + Redis" if servers else "embedded"
        if options.setup in (None, "servers" if servers else "embedded"):
            more = {"results": {"kept_max": options.kept_max}}
            with (
                setups.fixed_engine() as engine,
                setups.qlm_running(engine, servers=servers, more=more) as qlm,
            ):
                result[arm] = _soak(qlm, options)
            wrong += [f"{arm}: {each}" for each in report(arm, result[arm])]
            if options.plot is not None:
                draw(
                    result[arm],
                    options.plot.with_stem(f"{options.plot.stem}-{'servers' if servers else 'embedded'}"),
                )
    setups.save(options.out, result)
    print(*wrong, f"{len(wrong)} findings; written to {options.out}", sep="\n", flush=True)
    return 1 if wrong else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='make bench ARGS="soak"', description=__doc__)
    parser.add_argument("--setup", choices=("embedded", "servers"), help="only this one")
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second")
    parser.add_argument("--warm-up", type=float, default=15.0, help="minutes")
    parser.add_argument("--minutes", type=float, default=30.0, help="measured minutes")
    parser.add_argument("--every-seconds", type=float, default=5.0, help="time between two readings")
    parser.add_argument("--kept-max", type=int, default=20_000, help="ended requests that QLM keeps")
    parser.add_argument("--plot", type=Path, help="picture of memory and latency")
    parser.add_argument("--out", type=Path, default=Path("build/soak.json"))
    return parser.parse_args(arguments)


def _soak(qlm: Running, options: argparse.Namespace) -> dict[str, Any]:
    before = sample(qlm)
    with tempfile.TemporaryDirectory(prefix="qlm-soak-") as folder:
        clients = SteadyClients(qlm.url, MODEL, options.rate, Path(folder) / "answers.jsonl", "all")
        try:
            time.sleep(60 * options.warm_up)
            began_s = time.monotonic()
            readings = _readings(qlm, began_s + 60 * options.minutes, options.every_seconds)
            over_s = time.monotonic()
        finally:
            clients.end()
        answers = clients.answers(0.0, float("inf"))
    print(f"{len(answers)} answers; waiting until nothing is left", flush=True)
    measured = [each for each in answers if began_s <= each["at_s"] < over_s]
    queues = before.get("RabbitMQ: queues", before.get("SQLite: rows of queue", 0))
    # Connections to the servers that were opened under load stay.
    allowed = {name: before[f"{name}: descriptors"] + _MORE_DESCRIPTORS for name in qlm.members}
    return {
        "before": before,
        "readings": [{"at_s": at_s - began_s, **reading} for at_s, reading in readings],
        "minutes": _by_minute(measured, began_s),
        "wrong": [each["wrong"] for each in answers if each["wrong"]][:20],
        "answers": len(answers),
        "left": wait_for_nothing(qlm, int(queues), options.kept_max, allowed),
        "after": sample(qlm),
    }


def _readings(qlm: Running, until_s: float, every_s: float) -> list[tuple[float, Sample]]:
    found = []
    while (now_s := time.monotonic()) < until_s:
        found.append((now_s, sample(qlm)))
        time.sleep(max(0.0, now_s + every_s - time.monotonic()))
    return found


def _by_minute(answers: Sequence[dict[str, Any]], began_s: float) -> list[dict[str, float]]:
    minutes: dict[int, list[dict[str, Any]]] = {}
    for each in answers:
        if each["kind"] in ("plain", "stream"):
            minutes.setdefault(int((each["at_s"] - began_s) // 60), []).append(each)
    return [
        {
            "minute": minute,
            "p50_ms": quantile_ms(some, 0.5),
            "p99_ms": quantile_ms(some, 0.99),
            "answers": len(some),
        }
        for minute, some in sorted(minutes.items())
    ]

"""`make chaos ROUNDS=20`: kill -9 of every part in turn, under open-loop load, on real servers.

Each round has a cluster of its own: two gateways, two controllers, three agents (the engines of two are
started by them), RabbitMQ, and Redis with an append-only file. Streaming, plain and asynchronous clients
arrive at random and go on at another gateway when theirs dies. Killed and started again, in turn: a gateway,
the controller that leads, an agent, an engine, Redis, RabbitMQ; last, Redis is emptied while 500 requests
wait. Every answer is compared with the one that the emulated model must give.

Exits with 1 if an accepted request was lost, answered twice, or shown with a token missing or repeated, or
if a round could not be played (a server did not start, say); the logs of that round are kept.
`--seed S --first R --rounds 1` plays a round again.
"""

import argparse
import random
import shutil
import sys
import time
import traceback
from pathlib import Path

import httpx
import uvloop

from benchmarks import setups
from benchmarks.chaos import report
from benchmarks.chaos.play import FAULTS, Round, play


def main() -> int:
    """Play the rounds, print the table, and write it down."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first", type=int, default=1, help="number of the first round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", choices=FAULTS, action="append", help="only this one (again: these)")
    parser.add_argument("--out", type=Path, default=Path("build/chaos.json"))
    options = parser.parse_args()
    print(f"machine: {setups.machine()}, seed {options.seed}", flush=True)
    started_s, rounds, unplayed = time.monotonic(), list[Round](), list[int]()
    for number in range(options.first, options.first + options.rounds):
        try:
            rounds.append(_round(options.seed, number, options.out, tuple(options.fault or FAULTS)))
        except (RuntimeError, httpx.HTTPError):
            traceback.print_exc()
            unplayed.append(number)
        result = report.as_json(rounds) | {
            "seed": options.seed,
            "machine": setups.machine(),
            "unplayed": unplayed,
        }
        setups.save(options.out, result)
    report.show(rounds)
    print(f"{time.monotonic() - started_s:.0f} s; written to {options.out}")
    if unplayed:
        print(f"could not be played, see above: rounds {unplayed}")
    return 0 if report.total(rounds).clean and not unplayed else 1


def _round(seed: int, number: int, out: Path, wanted: tuple[str, ...]) -> Round:
    """Play a round; keep its folder if something happened that must not."""
    folder = (out.parent / f"chaos-{seed}-{number}").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    print(f"round {number}", flush=True)
    started_s = time.monotonic()
    made = uvloop.run(play(folder, random.Random(f"chaos {seed} {number}"), wanted))
    verdict = made.verdict
    print(
        f"  {time.monotonic() - started_s:.0f} s: accepted {verdict.accepted.total()}, lost {verdict.lost}, "
        f"twice {verdict.twice}, broken {verdict.broken}, output_lost {verdict.output_lost}, "
        f"gone {verdict.gone}",
        flush=True,
    )
    for story in verdict.stories[:20]:
        print(f"  {story}")
    if verdict.clean:
        shutil.rmtree(folder)
    else:
        print(f"  logs and data: {folder}")
        print(f"  again: make chaos ROUNDS=1 ARGS='--seed {seed} --first {number}'", flush=True)
    return made


if __name__ == "__main__":
    sys.exit(main())

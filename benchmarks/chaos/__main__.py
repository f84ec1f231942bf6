"""`make chaos ROUNDS=20`: kill -9 of every part in turn, under open-loop load, on real servers.

Each round has its own cluster: two gateways, two controllers, three agents (two of which start their engine),
RabbitMQ, and Redis with an append-only file. Streaming, plain and asynchronous clients arrive at random, and
continue at another gateway when theirs dies. Killed and restarted in turn: a gateway, the leading controller,
an agent, an engine, Redis, RabbitMQ. Last, Redis is emptied while 500 requests wait. Every answer is compared
with the answer of the emulated model.

Exits with 1 if an accepted request was lost, answered twice, or had a token missing or repeated, or if a
round could not run (for instance because a server did not start). The logs of that round are kept. `--seed S
--first R --rounds 1` repeats a round.
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
    """Run the rounds, print the table and save it."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first", type=int, default=1, help="number of the first round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", choices=FAULTS, action="append", help="only this fault; repeatable")
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
        print(f"rounds that could not run, see above: {unplayed}")
    return 0 if report.total(rounds).clean and not unplayed else 1


def _round(seed: int, number: int, out: Path, wanted: tuple[str, ...]) -> Round:
    """Run a round; keep its folder if a guarantee was broken."""
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
    for incident in verdict.incidents[:20]:
        print(f"  {incident}")
    if verdict.clean:
        shutil.rmtree(folder)
    else:
        print(f"  logs and data: {folder}")
        print(f"  repeat: make chaos ROUNDS=1 ARGS='--seed {seed} --first {number}'", flush=True)
    return made


if __name__ == "__main__":
    sys.exit(main())

"""`make upgrade`: rolling updates under load, on real servers, and what became of every request.

Two gateways, two controllers, three agents, RabbitMQ and Redis, under the load of `make chaos` (streams,
plain and asynchronous requests, arriving at random; a fifth of them cannot be resumed exactly). Each part in
turn gets SIGTERM, has its grace to end, is started again, and the next one follows when it is ready: first
with the same configuration, then with one that has a model more, which clients ask from then on, then back.
Clients go to the other gateway when theirs refuses or cuts them off; streams resume where they were.

Exits with 1 if an accepted request was lost, answered twice, shown with a token missing or repeated, or
refused for good, or if a part did not stop in its time, or not with exit code 0; the logs are kept then.
"""

import argparse
import random
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path

import uvloop

from benchmarks import setups
from benchmarks.chaos import report
from benchmarks.upgrade.play import ROLLS, Upgrade, play


def main() -> int:
    """Play the updates, print what they showed, and write it down."""
    parser = argparse.ArgumentParser(prog="make upgrade", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--roll", choices=ROLLS, action="append", help="only this one (again: these)")
    parser.add_argument("--out", type=Path, default=Path("build/upgrade.json"))
    options = parser.parse_args()
    machine, started_s = setups.machine(), time.monotonic()
    print(f"machine: {machine}, seed {options.seed}", flush=True)
    folder = (options.out.parent / f"upgrade-{options.seed}").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    rolls = tuple(options.roll or ROLLS)
    made = uvloop.run(play(folder, random.Random(f"upgrade {options.seed}"), rolls))
    result = {"rolls": list(map(asdict, made.rolls)), "verdict": report.counts(made.verdict)}
    setups.save(options.out, result | {"of_more": made.of_more, "seed": options.seed, "machine": machine})
    show(made)
    print(f"{time.monotonic() - started_s:.0f} s; written to {options.out}")
    if made.clean:
        shutil.rmtree(folder)
    else:
        print(f"logs and data: {folder}")
    return 0 if made.clean else 1


def show(made: Upgrade) -> None:
    """Print the counts."""
    for roll in made.rolls:
        print(
            f"{roll.name}: {len(roll.restarts)} parts, {roll.open} requests open at a stop, "
            f"{roll.breaks} connections refused or cut, {roll.cuts} in an answer, "
            f"{roll.refused} told to come again, longest silence of a stream {roll.silence_s:.2f} s"
        )
    verdict = made.verdict
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(verdict.accepted.items()))
    print(f"accepted {verdict.accepted.total()} ({kinds}), {made.of_more} of them for the further model")
    print(f"lost {verdict.lost}, answered twice {verdict.twice}, broken streams {verdict.broken}")
    print(f"never accepted, and refused for good: {verdict.refused}")
    for story in verdict.stories[:20]:
        print(f"  {story}")


if __name__ == "__main__":
    sys.exit(main())

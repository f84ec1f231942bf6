"""`make upgrade`: rolling updates under load, on real servers, with an account of every request.

Two gateways, two controllers, three agents, RabbitMQ and Redis run under the load of `make chaos` (streamed,
plain and asynchronous requests, arriving at random; a fifth of them cannot be resumed exactly). Each process
in turn gets SIGTERM, has its grace period to end, and is restarted; the next one follows when it is ready.
The first update keeps the configuration, the second adds a model, which clients use from then on, and the
third removes it again. Clients change to the other gateway when theirs refuses or breaks their connection;
streams resume where they were.

With `--from`, the cluster starts in another version of QLM: a wheel, or a revision in the history of this
clone. It is updated to this version and back, in the same way.

Exits with 1 if a request was lost, answered twice, had a token missing or repeated, or was refused for good,
or if a process did not stop in time or with exit code 0. The logs are kept then.
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
from benchmarks.upgrade.play import ROLLS, Upgrade, across, play
from benchmarks.upgrade.release import NotInstalledError, installed
from support.qlm_process import QLM


def main() -> int:
    """Run the updates, print and save their results."""
    parser = argparse.ArgumentParser(prog="make upgrade", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--roll", choices=tuple(ROLLS), action="append", help="only this update; repeatable")
    parser.add_argument("--from", dest="source", help="wheel or revision to update from, and back")
    parser.add_argument("--out", type=Path, default=Path("build/upgrade.json"))
    options = parser.parse_args()
    machine, started_s = setups.machine(), time.monotonic()
    print(f"machine: {machine}, seed {options.seed}", flush=True)
    folder = (options.out.parent / f"upgrade-{options.seed}").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    rolls, before = [ROLLS[name] for name in options.roll or ROLLS], QLM
    if options.source:
        try:
            release = installed(options.source)
        except NotInstalledError as error:
            parser.exit(2, f"make upgrade: {error}\n")
        rolls, before = list(across(release)), release.qlm
    made = uvloop.run(play(folder, random.Random(f"upgrade {options.seed}"), rolls, before=before))
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
            f"{roll.refused} refused with a retry delay, longest silence of a stream {roll.silence_s:.2f} s"
        )
    verdict = made.verdict
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(verdict.accepted.items()))
    print(f"accepted {verdict.accepted.total()} ({kinds}), {made.of_more} of them for the further model")
    print(f"lost {verdict.lost}, answered twice {verdict.twice}, broken streams {verdict.broken}")
    print(f"never accepted, and refused for good: {verdict.refused}")
    for incident in verdict.incidents[:20]:
        print(f"  {incident}")


if __name__ == "__main__":
    sys.exit(main())

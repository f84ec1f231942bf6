"""`make chaos ROUNDS=20`: faults of all kinds in turn, under open-loop load, on real servers.

Each round has its own cluster: two gateways, two controllers, three agents (two of which start their engine),
RabbitMQ, and Redis with an append-only file. Streaming, plain and asynchronous clients arrive at random, and
continue at another gateway when theirs dies. Every answer is compared with the answer of the emulated model.
`--kinds` selects kinds of faults, or whole groups of them: kill, flush, hang, stop, write, alarm, keys,
garbage, partition, double, worker. The default is all.

Exits with 1 if an accepted request was lost, answered twice, or had a token missing or repeated; if a promise
was not kept during a fault; or if a round could not run (for instance because a server did not start) or had
no time for all its kinds. The logs of that round are kept. `--seed S --first R --rounds 1` repeats a round;
`--resume` goes on after the last round in the result file.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import httpx
import uvloop

from benchmarks import setups
from benchmarks.chaos import report
from benchmarks.chaos.faults.fault import Kind
from benchmarks.chaos.faults.kinds import GROUPS, chosen
from benchmarks.chaos.play import Round, play


def main() -> int:
    """Run the rounds, print the table and save it."""
    options = _options()
    print(f"machine: {setups.machine()}, seed {options.seed}", flush=True)
    started_s, rounds, unplayed = time.monotonic(), _saved(options), list[int]()
    for number in range(options.first + len(rounds), options.first + options.rounds):
        try:
            rounds.append(_round(options, number))
        except (RuntimeError, OSError, subprocess.SubprocessError, httpx.HTTPError):
            traceback.print_exc()
            unplayed.append(number)
        _save(options, rounds, unplayed)
    report.show(rounds)
    print(f"{time.monotonic() - started_s:.0f} s; written to {options.out}")
    if unplayed:
        print(f"rounds that could not run, see above: {unplayed}")
    skipped = sorted({name for each in rounds for name in each.skipped})
    if skipped:
        print(f"no time was left for {', '.join(skipped)}")
    return 0 if report.total(rounds).clean and not unplayed and not skipped else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first", type=int, default=1, help="number of the first round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--kinds", type=_kinds, default=",".join(GROUPS), help="kinds of faults or groups, with commas"
    )
    parser.add_argument("--round-s", type=float, default=1200.0, help="no fault begins later in a round")
    parser.add_argument("--resume", action="store_true", help="keep the rounds in the result file")
    parser.add_argument("--out", type=Path, default=Path("build/chaos.json"))
    return parser.parse_args()


def _kinds(names: str) -> Sequence[Kind]:
    try:
        return chosen(names)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _saved(options: argparse.Namespace) -> list[Round]:
    """Return the rounds of an earlier run with the same seed, first round and kinds."""
    if not options.resume or not options.out.exists():
        return []
    saved = json.loads(options.out.read_text("utf-8"))
    if _setup(options).items() <= saved.items() and not saved["unplayed"]:
        return report.from_json(saved)
    raise SystemExit(f"{options.out} is of another run; remove it, or leave out --resume")


def _setup(options: argparse.Namespace) -> dict[str, object]:
    return {
        "seed": options.seed,
        "first": options.first,
        "kinds": [kind.name for kind in options.kinds],
        "machine": setups.machine(),
    }


def _save(options: argparse.Namespace, rounds: Sequence[Round], unplayed: Sequence[int]) -> None:
    setups.save(options.out, report.as_json(rounds) | _setup(options) | {"unplayed": list(unplayed)})


def _round(options: argparse.Namespace, number: int) -> Round:
    """Run a round; keep its folder if a guarantee was broken."""
    seed: int = options.seed
    folder = (options.out.parent / f"chaos-{seed}-{number}").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    print(f"round {number}", flush=True)
    started_s = time.monotonic()
    rng = random.Random(f"chaos {seed} {number}")
    made = uvloop.run(play(folder, rng, options.kinds, options.round_s))
    verdict = made.verdict
    print(
        f"  {time.monotonic() - started_s:.0f} s: accepted {verdict.accepted.total()}, lost {verdict.lost}, "
        f"twice {verdict.twice}, broken {verdict.broken}, unkept {verdict.unkept}, "
        f"output_lost {verdict.output_lost}, gone {verdict.gone}, refused {verdict.refused}",
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

"""Drawn scenarios, an arm against its rivals: `make bench ARGS="motion"`.

Each scenario is drawn from its seed (`benchmarks.motion.generator`) and simulated at each load with each seed
of the workload, under each arm, with the same requests and engines. Each run is one line of a file. Called
again, the benchmark goes on with the runs that the file lacks. After a change of the code, begin a new file,
or delete the lines of the arms that it changes.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.motion.arms import arm_name
from benchmarks.motion.cells import cells
from benchmarks.motion.facts import facts_of
from benchmarks.motion.generator.scenario import scenario_file
from benchmarks.motion.report import plain, tables
from benchmarks.motion.runs import REPORTED, Key, Run, append, digest_of, missing, read, run
from qlm.planner.policy.default import DEFAULT_POLICY

RIVALS: Final = ("edf+rules", "fcfs", "fcfs+rules", "sjf+rules", "group-greedy", "round-robin")
LOADS: Final = (0.3, 0.8, 1.2)
FOLDER: Final = Path("build/motion")


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the scenarios, simulate what is missing, and report."""
    options = _options(arguments)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        paths = _files(pool, options)
        keys = list(_keys(options, paths))
        todo = missing(keys, read(options.state))
        print(f"{len(keys)} runs, {len(keys) - len(todo)} of them in {options.state}", flush=True)
        _simulate(pool, paths, todo, options.state)
    known = read(options.state)
    _report([known[key] for key in keys if key in known], options, paths)
    return 0


def _files(pool: ProcessPoolExecutor, options: argparse.Namespace) -> dict[str, Path]:
    """Return the scenario files by name; missing ones are drawn."""
    seeds = range(options.first, options.first + options.scenarios)
    futures = [pool.submit(scenario_file, options.folder, seed, again=options.redraw) for seed in seeds]
    found = {}
    for number, future in enumerate(futures, 1):
        path = future.result()
        found[path.stem] = path
        print(f"scenario {number}/{len(futures)}: {path}", flush=True)
    return found


def _keys(options: argparse.Namespace, paths: dict[str, Path]) -> Iterator[Key]:
    """Yield the runs, cell by cell."""
    arms = dict.fromkeys((options.subject, *options.arms))
    for name, path in paths.items():
        digest = digest_of(path)
        for load in options.loads:
            for seed in options.seeds:
                for arm in arms:
                    yield (name, digest, arm, load, seed)


def _simulate(pool: ProcessPoolExecutor, paths: dict[str, Path], todo: Sequence[Key], state: Path) -> None:
    """Simulate, and write each run as soon as it has ended."""
    began_s = time.monotonic()
    futures = [pool.submit(run, paths[name], arm, load, seed) for name, _, arm, load, seed in todo]
    for number, future in enumerate(as_completed(futures), 1):
        one = future.result()
        append(state, one)
        left_s = (time.monotonic() - began_s) / number * (len(todo) - number)
        print(f"{number}/{len(todo)} {_line(one)}; {left_s / 60:.0f} min left", flush=True)


def _line(one: Run) -> str:
    return (
        f"{one.scenario} load {one.load:g} seed {one.seed} {one.arm}: {one.attainment:.3f} "
        f"of {one.requests} met, {one.processor_s:.1f} s"
    )


def _report(runs: Sequence[Run], options: argparse.Namespace, paths: dict[str, Path]) -> None:
    """Print the report, and write it as JSON and as text."""
    rivals = [arm for arm in options.arms if arm not in (*REPORTED, options.subject)]
    found = cells(runs, options.subject, rivals)
    facts = {name: facts_of(path) for name, path in paths.items()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    report = plain(found, options.subject, facts)
    options.out.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    with options.out.with_suffix(".txt").open("w", encoding="utf-8") as file:
        for console in (Console(width=140), Console(width=140, file=file)):
            for table in tables(found, options.subject, facts):
                console.print(table)
    print(f"written to {options.out} and {options.out.with_suffix('.txt')}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="motion", description=__doc__)
    parser.add_argument("--scenarios", type=int, default=24, help="number of scenarios")
    parser.add_argument("--first", type=int, default=1, help="seed of the first one; the next has the next")
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, help="1.0: best static placement")
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2), help="seeds of the requests")
    parser.add_argument(
        "--subject", default=DEFAULT_POLICY, type=arm_name, metavar="ARM", help="arm compared"
    )
    parser.add_argument(
        "--arms",
        nargs="+",
        default=(*RIVALS, *REPORTED),
        type=_other,
        metavar="ARM",
        help=f"other arms, see benchmarks.motion.arms; {' and '.join(REPORTED)} are no rivals",
    )
    parser.add_argument("--state", type=Path, default=FOLDER / "runs.jsonl", help="file of runs")
    parser.add_argument("--folder", type=Path, default=FOLDER / "scenarios", help="folder of scenario files")
    parser.add_argument("--redraw", action="store_true", help="draw scenario files that exist, too")
    parser.add_argument("--jobs", type=int, default=2, help="parallel simulations")
    parser.add_argument("--out", type=Path, default=FOLDER / "report.json", help="report; also as .txt")
    return parser.parse_args(arguments)


def _other(name: str) -> str:
    return name if name in REPORTED else arm_name(name)


if __name__ == "__main__":
    raise SystemExit(main())

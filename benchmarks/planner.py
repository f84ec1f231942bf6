"""Quality and speed of fast plans: `make bench ARGS="planner"`.

`gap`: against proven optima of small problems. `baselines`: never worse than the best of them? `live`: a
busy controller's problem in a second, and again after a small change. `growth`: time and quality by size.
`best`: long searches for the best plan of a live problem; pass their results to `live` by `--best`. Seconds
of the processor are given beside those of the clock on the wall, since the machine may do other work."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import planner_against, planner_best, planner_gap, planner_growth, planner_second
from benchmarks.planner_timing import peak_memory_gb, within
from benchmarks.setups import machine, save

PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "gap": lambda o: planner_gap.run(o.sizes, o.problems or 12, o.sampled, o.exact_limit),
    "baselines": lambda o: planner_against.run(o.problems or 500, o.shepherd, o.first_seed),
    "live": lambda o: _live(o),
    "growth": lambda o: planner_growth.run(o.largest),
    "best": lambda o: planner_best.run(o.seeds, o.searches, o.moves, o.groups),
}
USUAL = ("gap", "baselines", "live", "growth")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts and print their tables."""
    options = _parser().parse_args(arguments)
    print(f"machine: {machine()}\n", flush=True)
    result: dict[str, Any] = {"machine": machine()}
    for part in options.part or USUAL:
        result[part] = PARTS[part](options)
        result["peak_memory_gb"] = peak_memory_gb()
    save(options.out, result)
    print(f"written to {options.out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench ARGS=planner", description=__doc__)
    parser.add_argument("--part", choices=sorted(PARTS), action="append")
    parser.add_argument("--out", type=Path, default=Path("build/bench-planner.json"))
    parser.add_argument("--problems", type=int, help="gap: per number of groups; baselines: in all")
    parser.add_argument("--sizes", type=int, nargs="+", default=[6, 7, 8, 9, 10], help="gap: groups")
    parser.add_argument("--sampled", type=int, default=4, help="gap: problems of a size on scenarios, too")
    parser.add_argument("--exact-limit", type=float, default=60.0, help="gap: seconds per proof")
    parser.add_argument("--shepherd", type=int, default=50, help="baselines: problems that it plans, too")
    parser.add_argument("--first-seed", type=int, default=0, help="baselines: of the problems")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="live, best: of problems")
    parser.add_argument("--groups", type=int, default=1600, help="live, best")
    parser.add_argument("--shared", action="store_true", help="live: groups share errors of class and speed")
    parser.add_argument("--limit", type=float, default=0.8, help="live: seconds of a plan, without its bound")
    parser.add_argument("--again-limit", type=float, default=0.07, help="live: seconds of a re-plan")
    parser.add_argument(
        "--by-processor",
        action="store_true",
        help="live: limits are of the processor's time, on busy machines",
    )
    parser.add_argument("--no-shepherd", action="store_true", help="live: leave out what takes 30 s")
    parser.add_argument("--best", nargs="*", default=[], metavar="SEED=SECONDS", help="live: what best found")
    parser.add_argument("--searches", type=int, default=2, help="best: per problem")
    parser.add_argument("--moves", type=float, default=1e8, help="best: per search; 1e8 take 80 s")
    parser.add_argument("--largest", type=int, default=1600, help="growth: groups")
    return parser


def _live(options: argparse.Namespace) -> dict[str, Any]:
    return planner_second.run(
        options.seeds,
        options.groups,
        budget=within(options.limit, by_processor=options.by_processor),
        again=within(options.again_limit, by_processor=options.by_processor),
        best_s=_pairs(options.best),
        shared=options.shared,
        others=[each for each in planner_second.BASELINES if each != "shepherd" or not options.no_shepherd],
    )


def _pairs(texts: Sequence[str]) -> dict[int, float]:
    pairs = (text.partition("=") for text in texts)
    return {int(seed): float(best_s) for seed, _, best_s in pairs}


if __name__ == "__main__":
    raise SystemExit(main())

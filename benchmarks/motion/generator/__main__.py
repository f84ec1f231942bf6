"""Draw scenario files: `python -m benchmarks.motion.generator SEED ...`; equal seeds give equal files."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.motion.generator.scenario import scenario_file
from qlm.planner.limits import SEED_MAX


def main(arguments: Sequence[str]) -> int:
    """Draw the files and print their paths."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.motion.generator", description=__doc__)
    parser.add_argument("seeds", type=_seed, nargs="+", metavar="SEED", help="seeds of the scenarios")
    parser.add_argument("--out", type=Path, default=Path("build/motion/scenarios"), help="folder")
    options = parser.parse_args(arguments)
    for seed in options.seeds:
        began_s = time.perf_counter()
        path = scenario_file(options.out, seed, again=True)
        print(f"{path} ({time.perf_counter() - began_s:.1f} s)", flush=True)
    return 0


def _seed(text: str) -> int:
    seed = int(text)
    if not 0 <= seed <= SEED_MAX:
        raise argparse.ArgumentTypeError(f"{seed} is no seed; expected 0 to {SEED_MAX}")
    return seed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Draw scenario files: `python -m benchmarks.motion.generator SEED ...`; equal seeds give equal files."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.motion.generator.scenario import scenario_file


def main(arguments: Sequence[str]) -> int:
    """Draw the files and print their paths."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.motion.generator", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="+", metavar="SEED", help="seeds of the scenarios")
    parser.add_argument("--out", type=Path, default=Path("build/motion/scenarios"), help="folder")
    options = parser.parse_args(arguments)
    for seed in options.seeds:
        began_s = time.perf_counter()
        path = scenario_file(options.out, seed, again=True)
        print(f"{path} ({time.perf_counter() - began_s:.1f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

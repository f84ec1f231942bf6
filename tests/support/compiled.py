"""Simulations by the interpreter and by compiled code, each in a process of its own."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
COMPILER: Final = shutil.which("cc")
"""The C compiler, if there is one."""

INTERPRETED: Final = ()
COMPILED: Final = ("-m", "benchmarks.compiled")


def requests_csv(launcher: tuple[str, ...], scenario: Path, policy: str, out: Path) -> bytes:
    """Simulate in a new process, and return the table of requests.

    Raises:
        subprocess.CalledProcessError: The code cannot be compiled, or the simulation failed.
    """
    simulate = ("-m", "qlm.cli.main", "simulate", str(scenario), "--policy", policy, "--out", str(out))
    command = [sys.executable, *launcher, *simulate]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return (out / "requests.csv").read_bytes()

"""Tests that only compute: how long they take decides nothing, so they may run whenever a core is idle.

`python -m support.computing` prints the folders that hold them.
"""

from collections.abc import Container
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parents[1]
FOLDERS: Final = tuple(
    TESTS / "unit" / name for name in ("planner", "rct_estimator", "simulation", "simulator")
)
WAITING: Final = frozenset(
    {
        "ServerProcess",
        "free_port",
        "serving",
        "signal",
        "socket",
        "subprocess",
        "threading",
        "time",
    }
)
"""Names in a test module that looks at a clock, or waits for another process or thread."""


def computes_only(file: Path, names: Container[str]) -> bool:
    """Whether the tests of a file with these names of its module may take any time."""
    return any(folder in file.parents for folder in FOLDERS) and not any(name in names for name in WAITING)


if __name__ == "__main__":
    print(*(folder.relative_to(TESTS.parent) for folder in FOLDERS), sep="\n")

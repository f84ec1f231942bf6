"""Memory, descriptors and threads of processes, from /proc."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from support.watchdog import group_members


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFigures:
    """Figures of the processes of one group.

    Attributes:
        rss_mb: Resident memory.
        pss_mb: Resident memory with shared pages divided among their users.
        descriptors: Open file descriptors.
        threads: Threads.
    """

    rss_mb: float
    pss_mb: float
    descriptors: int
    threads: int


def group_figures(group: int) -> ProcessFigures:
    """Return the sums over the live processes of a group."""
    rss_kb = pss_kb = descriptors = threads = 0
    for member in group_members(group):
        folder = Path(f"/proc/{member}")
        with contextlib.suppress(OSError):  # it may have just ended
            rss_kb += _kb(folder / "smaps_rollup", "Rss:")
            pss_kb += _kb(folder / "smaps_rollup", "Pss:")
            threads += _kb(folder / "status", "Threads:")
            descriptors += len(list((folder / "fd").iterdir()))
    return ProcessFigures(
        rss_mb=rss_kb / 1024, pss_mb=pss_kb / 1024, descriptors=descriptors, threads=threads
    )


def _kb(file: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(name))

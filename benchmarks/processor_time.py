"""Processor time from /proc: a measure that is comparable on a shared machine."""

import contextlib
import os
from pathlib import Path

from support.watchdog import group_members


def group_s(group: int) -> float:
    """Return the processor time of a process group's live processes, seconds."""
    ticks = 0
    for member in group_members(group):
        with contextlib.suppress(OSError):  # it may have just ended
            # After the name: state, parent, group, ...; the 12th and 13th are user and system time.
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2]
            ticks += sum(numbers(fields, 11, 13))
    return ticks / os.sysconf("SC_CLK_TCK")


def numbers(text: str, first: int, end: int) -> list[int]:
    return [int(word) for word in text.split(None, end)[first:end]]

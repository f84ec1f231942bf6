"""End a process group and what it leaves in shared memory; as a program, do so when the test run is gone.

Usage: python watchdog.py GROUP, with a pipe from the test run as standard input. The pipe closes when the
test run ends, whatever ended it. Standard library only: it runs without site-packages.
"""

import contextlib
import os
import re
import signal
import sys
import time
from pathlib import Path

_SHARED_MEMORY = re.compile(r"/dev/shm/\S+$", re.MULTILINE)


def group_members(group: int) -> list[int]:
    """Return the ids of the live processes of a process group; zombies do not count."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # "pid (name) state parent group ...", where the name may hold blanks and brackets
            state, _, pgrp = stat.read_text().rpartition(")")[2].split()[:3]
            if int(pgrp) == group and state != "Z":
                members.append(int(stat.parent.name))
    return members


def end_group(group: int) -> None:
    """SIGKILL all processes of a group, wait until they are gone, and free their shared memory.

    A killed vLLM cannot remove its segments from /dev/shm, some 200 MB each: after a few runs it is full.
    """
    segments: set[str] = set()
    for member in group_members(group):
        with contextlib.suppress(OSError):
            segments.update(_SHARED_MEMORY.findall(Path(f"/proc/{member}/maps").read_text()))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    while group_members(group):
        time.sleep(0.005)
    for segment in segments:
        Path(segment).unlink(missing_ok=True)


if __name__ == "__main__":
    sys.stdin.read()
    end_group(int(sys.argv[1]))

"""Killing what engines of former agents left behind, at an agent's start.

There is something to sweep only if a guard was itself killed (see `guard`). Process ids are used again, so
nothing is killed on the strength of an id alone.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from qlm.agents.guard import MARKER_VARIABLE, boot_id, kill, process_ids, process_stat, start_ticks
from qlm.domain.errors import QlmError

_WAIT_S: Final = 10.0
_POLL_S: Final = 0.01


class LeftoverError(QlmError):
    """A process of a former engine cannot be killed, and may hold accelerator memory."""


def sweep(state_folder: Path) -> list[int]:
    """Kill what is left of engines whose guard is gone; engines with a live guard are left alone.

    Blocks until the processes have vanished, so call it before the event loop runs, or in a thread.

    Args:
        state_folder: Where the guards of this machine's agents keep their state files.

    Returns:
        The ids of the processes killed.

    Raises:
        LeftoverError: Some do not go away.
    """
    killed = []
    for state_file in sorted(state_folder.glob("*.json")):
        killed += sweep_one(state_file)
    return killed


def sweep_one(state_file: Path) -> list[int]:
    """Do what `sweep` does, for one engine."""
    try:
        state = json.loads(state_file.read_text())
    except (OSError, ValueError):
        return []  # written and renamed in one piece, so it is not ours
    here = state.get("boot_id") == boot_id()
    if here and start_ticks(state["guard"]) == state["guard_start"]:
        return []
    killed = _kill_all(state) if here else []
    state_file.unlink(missing_ok=True)
    return killed


def leftovers(state: Mapping[str, Any]) -> list[int]:
    """Find the live processes of an engine by what its guard wrote down.

    A process belongs to it if its environment carries the engine's marker. vLLM's workers overwrite their
    environment with a title (measured on 0.32); such a one belongs to it if it is in the engine's session
    and not older than the engine. A session's number is not given to another process while the session
    has members, and if its leader lives it must be the engine itself.
    """
    marker = f"{MARKER_VARIABLE}={state['marker']}".encode()
    leader = start_ticks(state["engine"])
    session = state["engine"] if leader in (None, state["engine_start"]) else None
    found = []
    for pid in process_ids():
        started, environment = start_ticks(pid), _environment(pid)
        if started is None or environment is None or started < state["engine_start"]:
            continue
        stat = process_stat(pid)
        in_session = bool(stat) and int(stat[3]) == session
        overwritten = environment.startswith(b"\0") or not environment
        if marker in environment.split(b"\0") or (in_session and overwritten):
            found.append(pid)
    return found


def _kill_all(state: Mapping[str, Any]) -> list[int]:
    killed: dict[int, int | None] = {}
    deadline_s = time.monotonic() + _WAIT_S
    while pids := sorted({*leftovers(state), *_ending(killed)}):
        for pid in pids:
            killed.setdefault(pid, start_ticks(pid))
            kill(pid)
        if time.monotonic() > deadline_s:
            raise LeftoverError(
                f"processes {pids} of a former engine did not end within {_WAIT_S:.0f} s of SIGKILL"
            )
        time.sleep(_POLL_S)
    return sorted(killed)


def _ending(killed: Mapping[int, int | None]) -> list[int]:
    """Those that are there yet: a process loses its environment, by which it is found, before it goes."""
    return [pid for pid, began in killed.items() if began is not None and start_ticks(pid) == began]


def _environment(pid: int) -> bytes | None:
    """Return a process's environment; None if it is another user's, the kernel's, or gone."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():  # noqa: PTH116
            return None
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None

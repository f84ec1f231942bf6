"""Kills processes that engines of earlier agents left behind, when an agent starts.

Orphans exist only if a guard was itself killed (see `guard`). The kernel reuses process ids, so an id alone
never identifies a process to kill.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from qlm.agents.engines.guard import MARKER_VARIABLE, boot_id, kill, process_ids, process_stat, start_ticks
from qlm.domain.errors import QlmError

_WAIT_S: Final = 10.0
_POLL_S: Final = 0.01


class OrphanError(QlmError):
    """A process of an earlier engine survives SIGKILL, and may hold accelerator memory."""


def kill_orphans(state_folder: Path) -> list[int]:
    """Kill the processes of engines whose guard is gone; engines with a live guard are left alone.

    Blocks until the processes have vanished: call it before the event loop runs, or in a thread.

    Args:
        state_folder: Folder in which the guards of this machine's agents keep their state files.

    Returns:
        The ids of the processes killed.

    Raises:
        OrphanError: Some survive.
    """
    killed = []
    for state_file in sorted(state_folder.glob("*.json")):
        killed += kill_orphans_of(state_file)
    return killed


def kill_orphans_of(state_file: Path) -> list[int]:
    """Kill the processes of one engine if its guard is gone; see `kill_orphans`."""
    try:
        state = json.loads(state_file.read_text())
    except (OSError, ValueError):
        # Gone meanwhile, or not ours: guards write a temporary file and rename it.
        return []
    same_boot = state.get("boot_id") == boot_id()
    if same_boot and start_ticks(state["guard"]) == state["guard_start"]:
        return []
    killed = _kill_all(state) if same_boot else []
    state_file.unlink(missing_ok=True)
    return killed


def find_orphans(state: Mapping[str, Any]) -> list[int]:
    """Return the live processes of an engine, from its guard's state.

    A process belongs to the engine if its environment carries the engine's marker. vLLM's workers overwrite
    their environment with a process title (measured on 0.32); such a worker belongs to the engine if it is in
    the engine's session and not older than the engine. The kernel does not reuse the number of a session that
    has members; if the session's leader lives, it must be the engine itself.
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
    while pids := sorted({*find_orphans(state), *_exiting(killed)}):
        for pid in pids:
            killed.setdefault(pid, start_ticks(pid))
            kill(pid)
        if time.monotonic() > deadline_s:
            raise OrphanError(
                f"processes {pids} of a former engine did not end within {_WAIT_S:.0f} s of SIGKILL"
            )
        time.sleep(_POLL_S)
    return sorted(killed)


def _exiting(killed: Mapping[int, int | None]) -> list[int]:
    # An exiting process loses its environment, by which `find_orphans` knows it, before it vanishes.
    return [pid for pid, started in killed.items() if started is not None and start_ticks(pid) == started]


def _environment(pid: int) -> bytes | None:
    """Return a process's environment; None if it is another user's, the kernel's, or gone."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():  # noqa: PTH116
            return None
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None

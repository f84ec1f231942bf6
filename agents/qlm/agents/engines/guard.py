"""Guard: a small process between an agent and one engine, so that no engine outlives its agent.

    python guard.py STATE_FILE MARKER -- COMMAND...

The guard runs COMMAND in a new session and is the subreaper of all its descendants. Its standard input is a
pipe that the agent holds open: `TERMINATE` sends SIGTERM to the engine; `KILL`, or the end of the pipe (the
agent has died), kills the engine with all descendants. The guard also kills the descendants when the engine's
main process ends: vLLM's EngineCore and workers would stay (measured on 0.32). If the guard itself is killed,
the kernel kills the engine's main process, and the next agent to start kills the rest by means of STATE_FILE
(see `orphans`). The guard exits with the engine's exit code, 128 + n after signal n.

Standard library only: the guard must start fast, stay small, and run without site-packages.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MARKER_VARIABLE: Final = "QLM_ENGINE_MARKER"
TERMINATE: Final = b"T"
KILL: Final = b"K"
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PROC: Final = Path("/proc")


def process_ids() -> Iterator[int]:
    """Return the ids of all processes."""
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def process_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on (state, parent, ...); [] if it is gone."""
    try:
        # "pid (name) state ...": the name may contain blanks and parentheses.
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def start_ticks(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot, or None if it is gone.

    Process ids are reused: only id and start time together identify a process.
    """
    stat = process_stat(pid)
    return int(stat[19]) if stat and stat[0] not in "ZX" else None


def boot_id() -> str:
    """Return the id of this boot; process ids and start times are valid within one boot only."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def descendants(root: int) -> list[int]:
    """Return the ids of all live descendants of a process."""
    parents = {
        pid: int(stat[1]) for pid in process_ids() if (stat := process_stat(pid)) and stat[0] not in "ZX"
    }
    found = [root]
    for parent in found:
        found += [pid for pid, its_parent in parents.items() if its_parent == parent]
    return found[1:]


def main(arguments: list[str]) -> int:
    """Run and guard one command until it has ended; return its exit code."""
    state_file, marker, dashes, *command = arguments
    if dashes != "--" or not command:
        raise SystemExit("usage: guard.py STATE_FILE MARKER -- COMMAND...")
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child_ended = _wake_on_child()
    engine = _spawn(command, marker)
    _write_state(Path(state_file), engine, marker)
    status = _watch(engine, child_ended)
    _kill_descendants()
    Path(state_file).unlink(missing_ok=True)
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def _wake_on_child() -> int:
    """Return a descriptor that becomes readable when a child ends."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def _spawn(command: list[str], marker: str) -> int:
    guard = os.getpid()
    environment = {**os.environ, MARKER_VARIABLE: marker}
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # the agent's own settings are inherited
    engine = os.fork()
    if engine:
        # From here on only the pipe ends the engine, not the terminal's signals. Not before the fork: the
        # engine would inherit the setting and ignore an early SIGTERM.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        return engine
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvpe(command[0], command, environment)
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _write_state(state_file: Path, engine: int, marker: str) -> None:
    guard = os.getpid()
    state = {
        "boot_id": boot_id(),
        "marker": marker,
        "guard": guard,
        "guard_start": start_ticks(guard),
        "engine": engine,
        "engine_start": start_ticks(engine),
    }
    new_file = state_file.with_suffix(".new")
    try:
        new_file.write_text(json.dumps(state))
        new_file.rename(state_file)
    except OSError:
        new_file.unlink(missing_ok=True)  # its name never comes again
        raise


def _watch(engine: int, child_ended: int) -> int:
    """Execute the commands from the pipe until the engine has ended; return its wait status."""
    pipe = [0]
    while True:
        ready, _, _ = select.select([child_ended, *pipe], [], [])
        if child_ended in ready:
            os.read(child_ended, 4096)
            if (status := _collect_children(engine)) is not None:
                return status
        if 0 in ready:
            if os.read(0, 1) == TERMINATE:
                os.kill(engine, signal.SIGTERM)
            else:
                pipe = []
                os.kill(engine, signal.SIGKILL)


def _collect_children(engine: int) -> int | None:
    """Collect ended children; return the engine's wait status if it is one of them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == engine:
            found = status


def _kill_descendants() -> None:
    while True:  # a dying process may have started another
        for pid in descendants(os.getpid()):
            kill(pid)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def kill(pid: int) -> None:
    """Send SIGKILL to a process that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A small process between an agent and one engine, so that no engine outlives its agent.

    python guard.py STATE_FILE MARKER -- COMMAND...

The guard runs COMMAND in a session of its own and is the reaper of all its descendants. Standard input is a
pipe that the agent holds open: a `T` asks the engine to end (SIGTERM), a `K` or the end of the pipe, that
is, the agent's death by whatever cause, kills the engine with every descendant. It does the same when the
engine's main process ends, since vLLM's EngineCore and workers would stay (measured on 0.32). If the guard
itself is killed, the kernel kills the engine's main process, and the next agent to start sweeps the rest by
means of STATE_FILE; see `engine_sweep`. It exits as the engine did, with 128 + n after signal n.

Standard library only: it must start fast, stay small, and be able to run without site-packages.
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
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PROC: Final = Path("/proc")


def process_ids() -> Iterator[int]:
    """Ids of all processes."""
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def process_stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on: state, parent, group, session, ...; [] if it is gone."""
    try:
        # "pid (name) state ...", where the name may hold blanks and brackets
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with the id, its identity. None if it is gone."""
    stat = process_stat(pid)
    return int(stat[19]) if stat and stat[0] not in "ZX" else None


def boot_id() -> str:
    """Identity of this run of the kernel; ids and start times mean nothing in another."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def descendants(root: int) -> list[int]:
    """Ids of the live children of a process, their children, and so on."""
    parents = {
        pid: int(stat[1]) for pid in process_ids() if (stat := process_stat(pid)) and stat[0] not in "ZX"
    }
    found = [root]
    for parent in found:
        found += [pid for pid, its_parent in parents.items() if its_parent == parent]
    return found[1:]


def main(arguments: list[str]) -> int:
    """Guard one command until it has ended; return its exit code."""
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
        signal.signal(number, signal.SIG_DFL)  # whatever the agent was started with
    engine = os.fork()
    if engine:
        # From here on the pipe says what to do, not the terminal. Not before the fork: the engine would be
        # deaf to an early order to end.
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
    fresh = state_file.with_suffix(".new")
    fresh.write_text(json.dumps(state))
    fresh.rename(state_file)


def _watch(engine: int, child_ended: int) -> int:
    """Wait until the engine has ended, doing what the pipe says; return its wait status."""
    pipe = [0]
    while True:
        ready, _, _ = select.select([child_ended, *pipe], [], [])
        if child_ended in ready:
            os.read(child_ended, 4096)
            if (status := _reap(engine)) is not None:
                return status
        if 0 in ready:
            order = os.read(0, 1)
            if order == b"T":
                os.kill(engine, signal.SIGTERM)
            else:
                pipe = []
                os.kill(engine, signal.SIGKILL)


def _reap(engine: int) -> int | None:
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
    """Kill and collect until there are none: a dying process may still have made another."""
    while True:
        for pid in descendants(os.getpid()):
            kill(pid)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def kill(pid: int) -> None:
    """SIGKILL a process that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

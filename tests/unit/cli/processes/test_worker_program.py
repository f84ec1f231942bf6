"""A gateway worker that has only begun to start: its owner is killed, or Ctrl-C is pressed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from qlm.cli.processes.workers import PROGRAM
from support.flaky import wait_until

IMPORTED_FIRST = """
import os, pathlib, sys
here = pathlib.Path(__file__).parent
here.joinpath("part").write_text(str(os.getpid()))
here.joinpath("part").rename(here / "pid")
with here.joinpath("goes-on").open():
    sys.exit(7)
"""
"""A package that all of QLM needs, and whose import does not end before it is told so."""

OWNER = """
import signal, subprocess, sys
subprocess.Popen([*sys.argv[1:], "0", "1"], stdin=subprocess.PIPE)
signal.pause()
"""


@contextmanager
def starting(folder: Path, *command: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a command until the worker that it is, or has, imports; yield it, and the id of the worker."""
    folder.joinpath("pydantic.py").write_text(IMPORTED_FIRST)
    os.mkfifo(folder / "goes-on")
    paths = os.pathsep.join([str(folder), *sys.path])
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | {"PYTHONPATH": paths})
    try:
        wait_until(folder.joinpath("pid").exists, "the worker imports")
        yield process, int(folder.joinpath("pid").read_text())
    finally:
        process.kill()
        process.communicate()


def runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@pytest.mark.parametrize("stopped", [False, True])
def test_it_ends_with_an_owner_that_is_killed(stopped: bool, tmp_path: Path) -> None:
    with starting(tmp_path, sys.executable, "-c", OWNER, *PROGRAM) as (owner, worker):
        if stopped:
            os.kill(worker, signal.SIGSTOP)
        try:
            owner.kill()
            wait_until(lambda: not runs(worker), "the worker ends")
        finally:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


def test_ctrl_c_is_for_its_owner(tmp_path: Path) -> None:
    with starting(tmp_path, *PROGRAM, "0", "1") as (worker, pid):
        assert worker.pid == pid
        worker.send_signal(signal.SIGINT)
        tmp_path.joinpath("goes-on").open("w").close()
        assert worker.wait() == 7

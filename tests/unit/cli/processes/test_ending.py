"""A process ends with its own exit status although threads of it are blocked for ever."""

import subprocess
import sys
import textwrap
import time

import pytest

PROGRAM = """
import asyncio, atexit, concurrent.futures, logging, sys, threading
from qlm.cli.processes import ending

ending.EXIT_S = 0.3
ending.THREADS_S, how, where = float(sys.argv[3]), sys.argv[1], sys.argv[2]
own = concurrent.futures.ThreadPoolExecutor(2, "own")
never = threading.Event()

def read_hung_disk():
    never.wait()

def short():
    never.wait(0.2)

async def main():
    if where == "exit":
        atexit.register(read_hung_disk)
    call = short if where in ("nowhere", "exit") else read_hung_disk
    pool = own if where == "own" else None
    asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(pool, call))
    await asyncio.get_running_loop().run_in_executor(own, int)  # leaves a thread without work
    if how == "defect":
        raise LookupError("lost")
    if how == "at once":
        ending.exit_at_once()

logging.basicConfig(format="%(message)s")
with ending.limited_end():
    ending.run_process(main())
    print("cleaned up")
    if how != "return":
        sys.exit("no good" if how == "message" else int(how) if how else None)
"""

STATUS = {"return": 0, "": 0, "0": 0, "2": 2, "message": 1, "defect": 1, "at once": 1}


def ended(how: str, where: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", textwrap.dedent(PROGRAM), how, where, str(limit_s)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("how", "where"),
    [
        (how, where)
        for how in STATUS
        for where in ("loop", "own", "exit")
        if (how, where) != ("at once", "exit")  # nothing runs at this exit
    ],
)
def test_a_blocked_thread_is_named_and_left(how: str, where: str) -> None:
    done = ended(how, where, limit_s=0.3)
    assert done.returncode == STATUS[how], done.stderr
    assert done.stdout.split("\n")[:-1] == ([] if how in ("defect", "at once") else ["cleaned up"])
    lines = [line for line in done.stderr.splitlines() if "blocked" in line]
    name = {"loop": "qlm_0", "own": "own_0", "exit": "MainThread"}[where]
    assert lines == [f"the process ends although threads are blocked: {name} (read_hung_disk in <string>)"], (
        done.stderr
    )
    assert ("LookupError: lost" in done.stderr) == (how == "defect")


@pytest.mark.parametrize("how", STATUS)
def test_without_one_the_end_is_that_of_any_process(how: str) -> None:
    began_s = time.monotonic()
    done = ended(how, "nowhere", limit_s=120)
    assert time.monotonic() - began_s < 60
    assert (done.returncode, "cleaned up" in done.stdout) == (STATUS[how], how not in ("defect", "at once"))
    assert "blocked" not in done.stderr or how == "at once"

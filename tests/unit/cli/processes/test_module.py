"""Programs beside a process: Ctrl-C in its terminal is not for them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.flaky import wait_until

STUBBORN = """
import asyncio, signal, sys
from pathlib import Path
from qlm.cli.runtime.plan_generator import PlanGenerator

async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, print, "SIGINT")
    generator = PlanGenerator(Path(sys.argv[1]))
    await generator.get_ready()
    print("ready" if generator.ready else "not ready", flush=True)

asyncio.run(main())
"""


def test_ctrl_c_in_a_terminal_does_not_reach_the_compilation_of_the_plan_generator(
    tmp_path: Path,
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:
        wait_until(lambda: "warm_up" in _children(process.pid), "the compilation starts", pause_s=0.01)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        output, _ = process.communicate()
    assert output == "SIGINT\nready\n"


def _children(pid: int) -> str:
    """Command lines of the children of a process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return " ".join(Path(f"/proc/{child}/cmdline").read_text() for child in children)

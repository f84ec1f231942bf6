"""Programs beside a process: Ctrl-C in its terminal is not for them, nor are modules in its folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qlm.agents.engines.command import EmulateSettings, emulate_command
from qlm.cli.processes.workers import PROGRAM
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


@pytest.mark.parametrize(
    "command", [(*PROGRAM, "0", "1"), emulate_command(EmulateSettings(port=0, model="no such")).argv]
)
def test_a_program_does_not_take_modules_of_the_folder_that_it_is_started_in(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    for name in ("numpy", "pydantic", "uvloop"):
        tmp_path.joinpath(f"{name}.py").write_text(f"raise SystemExit('the {name} of the folder')")
    done = subprocess.run(command, cwd=tmp_path, input="", capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "of the folder" not in done.stderr


def _children(pid: int) -> str:
    """Command lines of the children of a process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return " ".join(Path(f"/proc/{child}/cmdline").read_text() for child in children)

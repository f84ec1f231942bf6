"""How a serving controller comes to the plan generator: by another planner until its code is compiled."""

import asyncio
import logging
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from qlm.cli.compiled_code import FOLDER_VARIABLE, compiled_code_folder
from qlm.controller.protocol import Planner
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.problem import Plan, Problem

log = logging.getLogger("qlm.cli")

_LAST_WORDS: Final = 300
"""Characters of what a failed compilation said that are worth a line of the log."""


class PlanGenerator:
    """A planner that plans by earliest deadline first until the plan generator's code is compiled.

    That takes half a minute of one core, once per installation, in a process of its own; later starts find
    the compiled code and take a second. Nobody waits for it: requests are planned all the time.

    Args:
        data_dir: Where the compiled code goes if the installation cannot be written.

    Attributes:
        ready: The plan generator plans.
        folder: Where its compiled code then is, if not beside its source.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._planner: Planner = plan_edf
        self.ready = False
        self.folder: Path | None = None

    def __call__(self, problem: Problem) -> Plan:
        """Plan by the best that is ready."""
        return self._planner(problem)

    async def get_ready(self) -> None:
        """Compile what is not compiled yet, then go over; without the solvers' packages stay as it is."""
        try:
            folder = await asyncio.to_thread(compiled_code_folder, self._data_dir)
            why = await _compile(folder)
        except OSError as error:  # no process, file or memory to be had
            why = str(error)
        if why:
            log.warning("planning stays with earliest deadline first: %s", why)
            return
        try:
            self._planner = await asyncio.to_thread(_load, folder)
        except Exception:
            # Whatever it is, requests go on being planned.
            log.exception("planning stays with earliest deadline first: the plan generator failed")
            return
        self.ready, self.folder = True, folder
        log.info("the plan generator plans from now on")


async def _compile(folder: Path | None) -> str:
    """Compile in another process, so that nothing here stands still meanwhile; say what went wrong, if so.

    Raises:
        OSError: It cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        # Without -P, modules of the current folder would go before what is installed.
        *(sys.executable, "-P", "-m", "qlm.planner.warm_up", "fast"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=None if folder is None else {**os.environ, FOLDER_VARIABLE: str(folder)},
    )
    try:
        _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    words = said.decode(errors="replace").strip()
    return "" if process.returncode == 0 else words[-_LAST_WORDS:] or f"exit code {process.returncode}"


def _load(folder: Path | None) -> Planner:
    """Read the compiled code, which takes most of a second, by planning something small."""
    if folder is not None:
        # In the environment, engines would come to it as well.
        numba: Any = import_module("numba")
        numba.config.CACHE_DIR = str(folder)
    from qlm.planner.policy.replanning import Replanner
    from qlm.planner.warm_up import warm_up_fast

    warm_up_fast()
    return Replanner()

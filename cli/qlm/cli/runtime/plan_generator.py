"""Planner of a serving controller: EDF until the plan generator's code is compiled, which then takes over."""

import asyncio
import logging
import os
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from qlm.cli.processes.module import start_module
from qlm.cli.runtime.compiled_code import FOLDER_VARIABLE, compiled_code_folder
from qlm.controller.core.decide import Planner
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.problem import Plan, Problem

log = logging.getLogger("qlm.cli")

_LOGGED_CHARACTERS: Final = 300
"""Characters of the output of a failed compilation that are logged."""


class PlanGenerator:
    """A planner that plans by earliest deadline first until the plan generator's code is compiled.

    Compilation takes half a minute of one core, once per installation, in a separate process. Later starts
    find the compiled code and take a second. Planning goes on meanwhile.

    Args:
        data_dir: Folder for the compiled code if the installation cannot be written.

    Attributes:
        ready: True once the plan generator plans.
        folder: Folder of its compiled code then, if not beside its source.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._planner: Planner = plan_edf
        self.ready = False
        self.folder: Path | None = None

    def __call__(self, problem: Problem) -> Plan:
        """Plan with the best planner that is ready."""
        return self._planner(problem)

    async def get_ready(self) -> None:
        """Compile if needed, then switch over; stay with EDF if that fails."""
        try:
            folder = await asyncio.to_thread(compiled_code_folder, self._data_dir)
            why = await _compile(folder)
        except OSError as error:  # no process, file or memory available
            why = str(error)
        if why:
            log.warning("planning stays with earliest deadline first: %s", why)
            return
        try:
            self._planner = await asyncio.to_thread(_load, folder)
        except Exception:
            # Whatever the error is, EDF goes on planning requests.
            log.exception("planning stays with earliest deadline first: the plan generator failed")
            return
        self.ready, self.folder = True, folder
        log.info("the plan generator plans from now on")


async def _compile(folder: Path | None) -> str:
    """Compile in another process, without blocking this one; return the error, or an empty string.

    Raises:
        OSError: The process cannot be started.
    """
    env = None if folder is None else {**os.environ, FOLDER_VARIABLE: str(folder)}
    process = await start_module("qlm.planner.warm_up", "fast", env=env)
    try:
        _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = errors.decode(errors="replace").strip()
    return "" if process.returncode == 0 else text[-_LOGGED_CHARACTERS:] or f"exit code {process.returncode}"


def _load(folder: Path | None) -> Planner:
    """Load the compiled code, which takes most of a second, by planning a small problem."""
    if folder is not None:
        # Not as an environment variable, which engines would inherit.
        numba: Any = import_module("numba")
        numba.config.CACHE_DIR = str(folder)
    from qlm.planner.policy.replanning import Replanner
    from qlm.planner.warm_up import warm_up_fast

    warm_up_fast()
    return Replanner()

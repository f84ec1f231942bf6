"""Engines that are started on a full disk."""

import sys
from pathlib import Path

from qlm.agents.engines.process import EngineProcess
from support.full_disk import full_disk


async def test_a_start_on_a_full_disk_fails_and_leaves_no_file(tmp_path: Path) -> None:
    """Each start has a name of its own: an engine that was tried all night left thousands of empty files."""
    states = tmp_path / "states"
    command = (sys.executable, "-ISc", "import signal; signal.pause()")
    with full_disk():
        engine = EngineProcess("e", command, env={}, log_file=tmp_path / "log", state_folder=states)
        await engine.start()
        assert (await engine.exited).return_code
    assert list(states.iterdir()) == []

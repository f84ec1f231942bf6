"""The log of an engine: appended to, and set aside at a start once it is long."""

import sys
from pathlib import Path

import pytest

from qlm.agents.engines import process
from qlm.agents.engines.process import EngineProcess

SAYS = (sys.executable, "-ISc", "import sys; print(sys.argv[1] * 1000)")


async def run(folder: Path, letter: str) -> None:
    """Run an engine that writes 1001 bytes, until it ends."""
    engine = EngineProcess(
        "e", (*SAYS, letter), env={}, log_file=folder / "logs" / "e.log", state_folder=folder / "states"
    )
    await engine.start()
    await engine.exited


async def test_starts_append_until_a_log_is_long_and_one_log_before_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOG_BYTES_MAX", 2000)
    for letter in "abcde":
        await run(tmp_path, letter)
    logs = {each.name: set(each.read_text()) - {"\n"} for each in (tmp_path / "logs").iterdir()}
    assert logs == {"e.log.1": {"c", "d"}, "e.log": {"e"}}


async def test_a_log_that_cannot_be_set_aside_keeps_no_engine_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOG_BYTES_MAX", 0)
    (tmp_path / "logs" / "e.log.1").mkdir(parents=True)
    for letter in "ab":
        await run(tmp_path, letter)
    assert set((tmp_path / "logs" / "e.log").read_text()) == {"a", "b", "\n"}

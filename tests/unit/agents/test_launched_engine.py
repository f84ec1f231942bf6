"""An engine that is launched: what a start leaves that fails or is cancelled half way."""

import asyncio
import sys
from pathlib import Path

import pytest

from qlm.agents.engines.command import EngineCommand
from qlm.agents.engines.launched import LaunchedEngine
from qlm.agents.engines.vllm.client import VllmEngine
from qlm.domain.errors import EngineUnavailableError
from qlm.domain.shell.tasks import end_tasks
from support.gateway import until


@pytest.fixture
def engine(tmp_path: Path) -> LaunchedEngine:
    """An engine whose process ends at once."""
    return launched(tmp_path, "raise SystemExit(7)")


def launched(tmp_path: Path, program: str) -> LaunchedEngine:
    command = EngineCommand((sys.executable, "-c", program), {})
    return LaunchedEngine(
        "gpu-0-m",
        "m",
        lambda port: command,
        seqs_max=1,
        batched_tokens_max=1,
        folder=tmp_path,
        ready_timeout_s=60,
    )


async def test_one_whose_process_cannot_be_made_can_be_stopped_and_started_again(
    engine: LaunchedEngine, tmp_path: Path
) -> None:
    in_the_way = tmp_path / "engines"
    in_the_way.write_text("a file")
    with pytest.raises(FileExistsError):
        await engine.start()
    await engine.stop()
    in_the_way.unlink()
    with pytest.raises(EngineUnavailableError, match="ended with code 7 before it was ready"):
        await engine.start()
    await engine.stop()


async def test_one_whose_start_is_cancelled_before_it_has_a_process_can_be_stopped(
    engine: LaunchedEngine,
) -> None:
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    await end_tasks([starting])
    assert starting.cancelled()
    await engine.stop()
    with pytest.raises(EngineUnavailableError, match="is not running"):
        _ = engine.engine


async def test_one_whose_connections_cannot_be_closed_loses_its_process_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = launched(tmp_path, "import signal; print('up', flush=True); signal.pause()")
    starting = asyncio.create_task(engine.start())
    log = tmp_path / "logs" / "gpu-0-m.log"
    await until(lambda: log.exists() and "up" in log.read_text())
    gone = asyncio.create_task(engine.wait_failed())
    await end_tasks([starting])

    close = VllmEngine.close

    async def fail(client: VllmEngine) -> None:
        await close(client)
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(VllmEngine, "close", fail)
        with pytest.raises(ZeroDivisionError):
            await engine.stop()
    assert "ended" in await gone

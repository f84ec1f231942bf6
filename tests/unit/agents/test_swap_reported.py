"""That a model is being swapped is known before the swap has taken any time."""

import asyncio
from pathlib import Path

import pytest

from qlm.domain.fleet import EngineState
from support.flaky import until
from support.plant import M, N, plant
from support.requests import a_request


async def test_a_swap_is_reported_when_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the next heartbeat, plans and other agents counted on the model that it leaves."""
    monkeypatch.setattr("qlm.agents.shell.runner.HEARTBEAT_S", 60.0)
    monkeypatch.setattr("qlm.agents.shell.instance_lease.HEARTBEAT_TTL_S", 120.0)
    async with plant(tmp_path) as it:
        await it.accept(a_request("here"))
        await it.all_end_exactly_once()
        asleep = asyncio.Event()

        async def sleep(level: int = 1) -> None:
            await asleep.wait()

        monkeypatch.setattr(it.engines[M], "sleep", sleep)
        await it.accept(a_request("there", model=N))

        async def reported() -> bool:
            (status,) = (await it.store.view()).instances
            return dict(status.engines)[N] is EngineState.STARTING

        await until(reported)
        asleep.set()
        await it.all_end_exactly_once()

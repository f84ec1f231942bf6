"""A cancelled control loop ends, whatever happens at the same time."""

import asyncio
from pathlib import Path

import pytest

from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.cli.runtime.clock import SystemClock
from qlm.cli.runtime.wiring import group_ids, new_controller_id
from qlm.controller.core.decide import ControllerSettings
from qlm.controller.shell.loop import ControllerLoop
from qlm.domain.leadership import WAKE_LEADER
from qlm.domain.view import ClusterView
from qlm.planner.baselines.edf import plan_edf
from qlm.store.core.effects import Effects
from qlm.store.embedded.memory import MemoryStore
from support.flaky import until
from support.plant import known_fleet


class WakingStore(MemoryStore):
    """A store that can wake its controllers unasked, and counts their looks."""

    looks = 0

    async def view(self) -> ClusterView:
        self.looks += 1
        return await super().view()

    def wake(self) -> None:
        self._feeds.announce(Effects(wakeups=[WAKE_LEADER]))


@pytest.mark.parametrize("turns", range(8))
async def test_a_wakeup_at_the_moment_of_the_end_does_not_keep_it_running(tmp_path: Path, turns: int) -> None:
    """The cancellation comes so many turns of the event loop after a wakeup, while that is on its way."""
    clock = SystemClock()
    file = await SqliteFile.open(tmp_path / "queue.db")
    queues, store = await SqliteQueues.open(file), WakingStore(clock)
    loop = ControllerLoop(
        name=new_controller_id(), store=store, broker=queues.broker(), clock=clock, fleet=known_fleet(),
        settings=ControllerSettings(quiet_s=60.0, min_interval_s=0.0), planner=plan_edf,
        new_group_id=group_ids(),
    )  # fmt: skip
    running = asyncio.create_task(loop.run())
    try:
        await until(lambda: store.looks)
        for _ in range(20):
            await asyncio.sleep(0)  # from there to its rest
        store.wake()
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait([running], timeout=5)
        assert done, "it runs on"
        assert running.cancelled()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await queues.close()
        await file.close()

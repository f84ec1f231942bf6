"""Lateness of a loop: none while it has time, and about as long as what blocks it."""

import asyncio
import time

from qlm.domain.shell.loop_lateness import PERIOD_S, LoopLateness
from support.flaky import until


async def test_a_loop_that_is_blocked_is_late() -> None:
    lateness = LoopLateness()
    assert lateness.mean_s == 0.0
    lateness.watch(on=True)

    def blocked() -> bool:
        time.sleep(3 * PERIOD_S)  # this is what blocks the loop
        return lateness.mean_s > PERIOD_S / 4

    await until(blocked)
    lateness.watch(on=False)
    before = lateness.mean_s
    await asyncio.sleep(0)  # a timer that is still set would be read
    assert lateness.mean_s == before
    lateness.watch(on=True)
    assert lateness.mean_s == 0.0
    lateness.watch(on=False)

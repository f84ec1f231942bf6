"""A process that is started again whenever it ends, or cannot be started."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from qlm.agents.engines.process import EngineProcess

_log = logging.getLogger("qlm.cli")

STOP_GRACE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Restarts:
    """Pauses before a process is started again.

    Attributes:
        pause_s: The first one; each further one is twice as long.
        pause_max_s: The longest one.
        steady_s: Length of a run after which the first one comes again.
    """

    pause_s: float = 1.0
    pause_max_s: float = 60.0
    steady_s: float = 300.0

    def next_pause_s(self, before_s: float | None, ran_s: float) -> float:
        """Return the pause after a run of `ran_s`, where the pause before it was `before_s`."""
        if before_s is None or ran_s >= self.steady_s:
            return self.pause_s
        return min(2 * before_s, self.pause_max_s)


async def keep_running(what: str, make: Callable[[], EngineProcess], restarts: Restarts) -> None:
    """Run a process until cancelled; the cancellation stops it within `STOP_GRACE_S`.

    Args:
        what: The process, for the log.
        make: Makes it anew for each start.
        restarts: The pauses between.
    """
    loop = asyncio.get_running_loop()
    pause_s: float | None = None
    while True:
        begun_s = loop.time()
        why, log_tail = await _run(make)
        pause_s = restarts.next_pause_s(pause_s, loop.time() - begun_s)
        _log.warning("%s %s; it starts again in %.0f s%s", what, why, pause_s, log_tail)
        await asyncio.sleep(pause_s)


async def _run(make: Callable[[], EngineProcess]) -> tuple[str, str]:
    """Run a process to its end; return what has ended it, and the end of its log."""
    try:
        process = make()
        try:
            await process.start()
            end = await asyncio.shield(process.exited)
        finally:
            if process.started:
                await process.stop(STOP_GRACE_S)
    except Exception as error:  # whatever it is, a full disk or no process left, may pass
        return f"cannot be run: {error!r}", ""
    return f"ended with code {end.return_code}", f"\n{end.log_tail}"

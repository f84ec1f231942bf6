"""An engine that somebody else runs: attached to by its address, watched by its health endpoint."""

import asyncio
import logging
from typing import Final

from qlm.domain.errors import EngineUnavailableError
from qlm.domain.ports.engine import Engine

log = logging.getLogger("qlm.agents")

PROBE_S: Final = 1.0
PROBES_MISSED_MAX: Final = 4
"""Health probes in a row that must fail before the engine counts as gone."""


class AttachedEngine:
    """An EngineUnit for a running vLLM-compatible server; starting waits for it, stopping lets go of it."""

    def __init__(self, engine: Engine, url: str, *, ready_timeout_s: float) -> None:
        self._engine = engine
        self._url = url
        self._ready_timeout_s = ready_timeout_s

    @property
    def engine(self) -> Engine:
        """The client to talk to it."""
        return self._engine

    async def start(self) -> None:
        """Wait until it answers its health probe."""
        log.info("waiting for the engine at %s", self._url)
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                await self._healthy()
        except TimeoutError as error:
            raise EngineUnavailableError(
                f"{self._url} did not answer its health probe within {self._ready_timeout_s:g} s"
            ) from error

    async def _healthy(self) -> None:
        while True:
            if await self._engine.healthy():
                return
            await asyncio.sleep(PROBE_S / 2)

    async def stop(self) -> None:
        """Nothing: it is not ours to stop."""

    async def close(self) -> None:
        """Close the connections to it."""
        await self._engine.close()

    async def fetch(self) -> bool:
        """Nothing: its files are not ours to read."""
        return False

    async def let_go(self) -> None:
        """Nothing was fetched."""

    async def died(self) -> str:
        """Wait until several health probes in a row have failed."""
        await hung(self._engine)
        return f"{self._url} failed {PROBES_MISSED_MAX} health probes in a row"


async def hung(engine: Engine) -> None:
    """Wait until several health probes in a row have failed."""
    missed = 0
    while missed < PROBES_MISSED_MAX:
        await asyncio.sleep(PROBE_S)
        missed = 0 if await engine.healthy() else missed + 1

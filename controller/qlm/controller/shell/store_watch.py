"""What breaks promises of the store, or soon will: logged once, and counted for alerts."""

import logging
from collections.abc import Callable
from typing import Final

from qlm.domain.ports.store import ControllerStore
from qlm.domain.shell.faults import FaultLog

log = logging.getLogger("qlm.controller")

PERIOD_NS: Final = 30_000_000_000
"""Time between two looks."""


class StoreWatch:
    """Asks the store for its warnings; call `look` with each turn of the leader."""

    def __init__(self, store: ControllerStore, faults: FaultLog, count: Callable[[int], None]) -> None:
        """Begin without warnings.

        Args:
            store: The store.
            faults: Failures of the process.
            count: Receives the number of present warnings.
        """
        self._store = store
        self._faults = faults
        self._count = count
        self._present = 0
        self._looked_ns: int | None = None

    async def look(self, now_ns: int) -> None:
        """Look at the warnings if that is due; never fails."""
        if self._looked_ns is not None and abs(now_ns - self._looked_ns) < PERIOD_NS:
            return
        self._looked_ns = now_ns
        try:
            warnings = await self._store.warnings()
        except Exception as error:
            self._faults.note(log, error, "warnings of the store not read")
            return
        if len(warnings) > self._present:  # their words have numbers that change
            for warning in warnings:
                log.warning("store: %s", warning)
        self._present = len(warnings)
        self._count(len(warnings))

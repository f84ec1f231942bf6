"""The leader tells operators what the store warns of, once."""

import logging
from collections.abc import Sequence

import pytest

from qlm.controller.shell.store_watch import PERIOD_NS, StoreWatch
from qlm.domain.errors import StoreUnavailableError
from qlm.domain.shell.faults import FaultLog
from qlm.store.embedded.memory import MemoryStore
from support.gateway import SystemClock


class WarningStore(MemoryStore):
    """Store with warnings of its own."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.present: list[str] = []
        self.away = False
        self.asked = 0

    async def warnings(self) -> Sequence[str]:
        self.asked += 1
        if self.away:
            raise StoreUnavailableError("away")
        return self.present


async def test_warnings_are_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    store, counts = WarningStore(), list[int]()
    watch = StoreWatch(store, FaultLog(), counts.append)
    caplog.set_level(logging.WARNING, "qlm.controller")
    for turn, words in enumerate((None, "91 % are used", "92 % are used", None, "95 % are used")):
        store.present = [] if words is None else [words]
        await watch.look(turn * PERIOD_NS)
        await watch.look(turn * PERIOD_NS + 1)  # too soon
    assert counts == [0, 1, 1, 0, 1]
    assert caplog.messages == ["store: 91 % are used", "store: 95 % are used"]
    assert store.asked == len(counts)


async def test_a_store_that_is_away_or_a_clock_that_is_set_back_stops_no_turn() -> None:
    store, counts = WarningStore(), list[int]()
    watch = StoreWatch(store, FaultLog(), counts.append)
    store.away = True
    await watch.look(PERIOD_NS * 10)
    store.away = False
    await watch.look(PERIOD_NS)
    assert counts == [0]

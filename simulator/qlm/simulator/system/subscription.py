"""One subscription to announcements: in order, late, and broken if something cannot be delivered."""

import asyncio
from typing import Any

from qlm.domain.errors import StoreUnavailableError
from qlm.simulator.system.network import REPLY_TIMEOUT_S, Network, Server
from qlm.simulator.system.process import Process
from qlm.simulator.system.virtual_loop import VirtualLoop


class Subscription:
    """What is announced to one process on one topic, on its way and arrived."""

    def __init__(self, loop: VirtualLoop, network: Network, process: Process) -> None:
        self._loop = loop
        self._network = network
        self._process = process
        self._on_the_way: list[Any] = []
        self._arrived: list[Any] = []
        self._broken = False
        self._reader: asyncio.Future[None] | None = None

    def put(self, item: object) -> None:
        """Send an announcement; what is sent before the former has arrived arrives with it."""
        self._on_the_way.append(item)
        if len(self._on_the_way) == 1:
            self._loop.call_later(self._network.trip_s(self._process.name), self._arrive)

    async def take(self) -> list[Any]:
        """Wait for announcements.

        Raises:
            StoreUnavailableError: The connection broke, and some were lost with it.
        """
        if not (self._arrived or self._broken):
            self._reader = self._loop.create_future()
            await self._reader
            self._reader = None
        if self._broken:
            raise StoreUnavailableError("the subscription broke")
        taken, self._arrived = self._arrived, []
        return taken

    def _arrive(self) -> None:
        items, self._on_the_way = self._on_the_way, []
        cut = self._network.cut_of(self._process.name, Server.STORE)
        if cut is None and not self._broken:
            self._arrived += items
            self._wake()
        elif not self._broken:
            # Who is cut off without a word notices by a missing sign of life.
            self._loop.call_later(REPLY_TIMEOUT_S if cut and cut.silent else 0.0, self._break)

    def _break(self) -> None:
        self._broken = True
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

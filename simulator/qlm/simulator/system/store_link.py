"""One process's connection to the shared state: each call is a round trip that may fail on either way."""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Final, cast

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ids import GatewayId, InstanceId
from qlm.domain.notices import InstanceNotice
from qlm.domain.output import OutputSlice
from qlm.domain.ports.store import Store
from qlm.simulator.system.network import Lane, Network, Server, UnreachableError
from qlm.simulator.system.process import Process
from qlm.simulator.system.store_notes import StoreNotes
from qlm.simulator.system.store_server import StoreServer
from qlm.store.effects import WAKE_SUBSCRIBED

_IN_ORDER: Final = "lease"
"""Leases asked for together travel together, as `store.redis_batch` sends them."""


class _StoreLink:
    """Passes every call on to the server; the subscriptions are its own."""

    def __init__(self, process: Process, server: StoreServer, network: Network, notes: StoreNotes) -> None:
        self._process = process
        self._server = server
        self._network = network
        self._notes = notes
        self._lane = Lane()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        call = self.__dict__[name] = partial(self._call, name)
        return call

    async def close(self) -> None:
        """Nothing is kept open between calls."""

    async def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        lane = self._lane if name == _IN_ORDER else None
        try:
            await self._network.send(self._process, Server.STORE, lane)
            answer = await self._notes.noted(self._process, name, arguments, named, self._server)
            await self._network.answer(self._process, Server.STORE, lane)
        except UnreachableError as error:
            raise StoreUnavailableError(str(error)) from None
        return answer

    async def outputs(self, watcher: GatewayId) -> AsyncIterator[Sequence[OutputSlice]]:
        """Iterate over announced output."""
        async for batch in self._batches(f"outputs {watcher}"):
            yield batch

    async def notices(self, instance: InstanceId) -> AsyncIterator[InstanceNotice]:
        """Iterate over notices to an instance."""
        async for batch in self._batches(f"notices {instance}"):
            for notice in dict.fromkeys(batch or self._server.standing_notices(instance)):
                yield notice

    async def wakeups(self) -> AsyncIterator[str]:
        """Iterate over hints to controllers."""
        async for batch in self._batches("wakeups"):
            for reason in dict.fromkeys(batch or (WAKE_SUBSCRIBED,)):
                yield reason

    async def _batches(self, topic: str) -> AsyncIterator[list[Any]]:
        """Give what is announced; first nothing, once the subscription is live."""
        try:
            await self._network.send(self._process, Server.STORE)
        except UnreachableError as error:
            raise StoreUnavailableError(str(error)) from None
        opened = self._server.subscribe(topic, self._process)
        try:
            yield []
            while True:
                yield await opened.take()
        finally:
            self._server.unsubscribe(topic, opened)


def link_to_store(process: Process, server: StoreServer, network: Network, notes: StoreNotes) -> Store:
    """Connect a process to the shared state."""
    return cast(Store, _StoreLink(process, server, network, notes))

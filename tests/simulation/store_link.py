"""Connection of one process to the shared state; each call is a round trip that may fail either way."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, cast

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ids import GatewayId, InstanceId
from qlm.domain.notices import InstanceNotice
from qlm.domain.output import LogEntry, OutputSlice
from qlm.domain.ports.store import Store
from qlm.store.core.effects import WAKE_SUBSCRIBED
from qlm.store.redis.announcements import read_notice, read_slices, read_wakeup
from simulation.network import Channel, Network, Server, UnreachableError
from simulation.process import Process
from simulation.store_recorder import StoreRecorder
from simulation.store_server import StoreServer

_IN_ORDER: Final = "lease"
"""Lease requests keep their order, as `store.redis.pipeline` sends them."""


class _StoreLink:
    """Forwards every call to the server, and opens subscriptions itself."""

    def __init__(
        self, process: Process, server: StoreServer, network: Network, recorder: StoreRecorder
    ) -> None:
        self._process = process
        self._server = server
        self._network = network
        self._recorder = recorder
        self._channel = Channel()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        call = self.__dict__[name] = partial(self._call, name)
        return call

    def append_now(self, entries: Sequence[LogEntry]) -> None:
        """Do nothing: a server cannot answer at once."""

    def lease_now(self, *_: object) -> None:
        """Do nothing, as `append_now`."""

    async def close(self) -> None:
        """Do nothing: no connection is kept open between calls."""

    async def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        channel = self._channel if name == _IN_ORDER else None
        try:
            await self._network.send(self._process, Server.STORE, channel)
            refusal = self._server.refusal
            if refusal is not None and refusal.refuses(name):
                await self._network.answer(self._process, Server.STORE, channel)
                raise StoreUnavailableError(refusal.text)
            answer = await self._recorder.call(self._process, name, arguments, named, self._server)
            await self._network.answer(self._process, Server.STORE, channel)
        except UnreachableError as error:
            raise StoreUnavailableError(str(error)) from None
        return answer

    async def outputs(self, watcher: GatewayId) -> AsyncIterator[Sequence[OutputSlice]]:
        """Iterate over announced output."""
        async for batch in self._batches(f"outputs {watcher}", read_slices):
            yield batch

    async def notices(self, instance: InstanceId) -> AsyncIterator[InstanceNotice]:
        """Iterate over notices to an instance."""
        async for batch in self._batches(f"notices {instance}", read_notice):
            for notice in dict.fromkeys(batch or self._server.standing_notices(instance)):
                yield notice

    async def wakeups(self) -> AsyncIterator[str]:
        """Iterate over hints to controllers."""
        async for batch in self._batches("wakeups", read_wakeup):
            for reason in dict.fromkeys(batch or (WAKE_SUBSCRIBED,)):
                yield reason

    async def _batches(self, topic: str, read: Callable[[bytes], Iterable[Any]]) -> AsyncIterator[list[Any]]:
        """Yield announcements; an empty batch means that the subscription is live, or that some were lost."""
        try:
            await self._network.send(self._process, Server.STORE)
        except UnreachableError as error:
            raise StoreUnavailableError(str(error)) from None
        opened = self._server.subscribe(topic, self._process)
        reader = self._server.reader(topic, read)
        try:
            yield []
            while True:
                items: list[Any] = []
                for item in await opened.take():
                    items += reader.items(item) if isinstance(item, bytes) else (item,)
                if items:
                    yield items
                if reader.missed():
                    yield []
        finally:
            self._server.unsubscribe(topic, opened)


def link_to_store(process: Process, server: StoreServer, network: Network, recorder: StoreRecorder) -> Store:
    """Connect a process to the shared state."""
    return cast(Store, _StoreLink(process, server, network, recorder))

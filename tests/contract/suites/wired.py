"""Clients that can be cut off from a RabbitMQ, one by one."""

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from support.wire import Wire


class Closed(Protocol):
    """A client that can be closed."""

    async def close(self) -> None:
        """Close it."""
        ...


C = TypeVar("C", bound=Closed)


class WiredClients(Generic[C]):
    """Clients of a RabbitMQ, each with a wire of its own to it, which a crash cuts."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._wires: dict[C, Wire] = {}

    async def connect(self, connect_to: Callable[[str], Awaitable[C]]) -> C:
        """Return a new client, made of the URL of its wire."""
        wire = Wire(self._port)
        await wire.mend()
        client = await connect_to(f"amqp://guest:guest@127.0.0.1:{wire.port}/%2F")
        self._wires[client] = wire
        return client

    async def crash(self, client: C) -> None:
        """Cut off a client."""
        await self._wires[client].cut()

    async def aclose(self) -> None:
        """Close all clients."""
        for client, wire in self._wires.items():
            await client.close()
            await wire.cut()

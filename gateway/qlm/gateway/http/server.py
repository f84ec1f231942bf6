"""The HTTP server of a gateway: start, and shutdown under load.

During a shutdown, open answers have a grace period. Requests that are still open after it continue without
this gateway. A plain client gets a 503 that is worth a retry, with the id of its request. A stream is cut off
in the middle: a client that resumes continues at another gateway, and one that cannot must not take what it
has for the whole answer.
"""

import asyncio
import math
import socket
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from qlm.gateway.core.connection_limits import Breach, ConnectionLimits
from qlm.gateway.http.connections.listener import Connections
from qlm.gateway.http.connections.protocol import LimitedProtocol
from qlm.gateway.http.connections.waiting import accept_waiting, kept_open, serve_accepted

if TYPE_CHECKING:
    # Beside gateways, processes that serve their metrics have this server, and no tokenizers.
    from qlm.gateway.sessions.hub import Hub

WRITE_REFUSALS_S: Final = 2
"""Time to write the refusals once the grace period is over."""

_CHECK_TICKS: Final = 5
"""Ticks of uvicorn, a tenth of a second each, between two checks of the connections' times."""


class QuietServer(uvicorn.Server):
    """A uvicorn server that leaves signals to its process; set `should_exit` to end it."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        """Configure the server.

        Args:
            config: Settings of uvicorn.
            connections: Its connections, as its protocol keeps them.
        """
        super().__init__(config)
        self._limited = connections

    async def on_tick(self, counter: int) -> bool:
        """Keep connections to their times; return whether to exit."""
        if counter % _CHECK_TICKS == 0:
            now_s = asyncio.get_running_loop().time()
            self._limited.check(now_s)
            for connection in tuple(self.server_state.connections):
                assert isinstance(connection, LimitedProtocol)
                connection.check(now_s)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop to accept connections, serve those that wait to be accepted, and end when all are answered."""
        self._limited.stopping = True
        listeners = kept_open(self.servers)
        for server in self.servers:
            server.close()
        for each in sockets or ():
            each.close()
        await asyncio.sleep(0)  # a closed server lets go of its listener in the next turn
        await serve_accepted(
            [waiting for each in listeners for waiting in accept_waiting(each)], self._connection
        )
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn leaves this out then, and the application would end with a traceback
            await self.lifespan.shutdown()

    def _connection(self) -> asyncio.Protocol:
        return LimitedProtocol(
            self._limited,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield

    def cut_off(self) -> None:
        """Close the connections of answers that have begun, after the bytes already written.

        Clients that still send a request are asked to go elsewhere.
        """
        for connection in tuple(self.server_state.connections):
            assert isinstance(connection, LimitedProtocol)
            cycle = connection.cycle
            if connection.is_sent_a_body:
                connection.refuse(Breach.STOPPING)
            elif cycle is not None and cycle.response_started and not cycle.response_complete:
                connection.transport.close()

    def abort(self) -> None:
        """Drop what is left of connections, whose clients do not read."""
        self.force_exit = True
        for connection in tuple(self.server_state.connections):
            assert isinstance(connection, HttpToolsProtocol)
            connection.transport.abort()


def create_server(
    app: Starlette,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    shutdown_s: int = 2,
    backlog: int = 2048,
    connections: Connections | None = None,
) -> QuietServer:
    """Return a server; `serve()` runs it on host and port, or on sockets that already listen.

    Args:
        app: The application.
        host: Address to listen on.
        port: Port to listen on; 0 for a free one.
        shutdown_s: Time for open answers after `should_exit`.
        backlog: Connections that may wait to be accepted.
        connections: Limits of its connections; by default those of `ConnectionLimits`, nothing counted.
    """
    connections = connections or Connections(ConnectionLimits(), lambda status, code: None)
    config = uvicorn.Config(
        app,
        host,
        port,
        loop="none",
        http=partial(LimitedProtocol, connections),  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=backlog,
        timeout_keep_alive=math.ceil(connections.limits.idle_timeout_s),
        timeout_graceful_shutdown=shutdown_s,
    )
    return QuietServer(config, connections)


@asynccontextmanager
async def running(server: QuietServer, listener: socket.socket) -> AsyncIterator[None]:
    """Serve on a socket while inside."""
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


async def stop_serving(
    server: QuietServer,
    serving: "asyncio.Task[None]",
    hub: "Hub",
    *,
    notice_s: float,
    grace_s: float,
    beside: "Collection[asyncio.Task[None]]" = (),
) -> None:
    """End a server; if cancelled, at once.

    Args:
        server: The HTTP server.
        serving: Its task.
        hub: The open subscriptions.
        notice_s: Time for which it serves on and only /readyz fails, so that load balancers notice.
        grace_s: Time for open answers after that; no client can connect any more.
        beside: Tasks that close other listeners meanwhile; their subscriptions have the same grace period.
    """
    hub.stopping = True
    server.config.timeout_graceful_shutdown = math.ceil(grace_s) + WRITE_REFUSALS_S
    try:
        if notice_s > 0:
            await asyncio.wait({serving}, timeout=notice_s)
        server.should_exit = True
        await asyncio.wait({serving, *beside}, timeout=grace_s)
    finally:
        server.should_exit = True
        interrupted = hub.interrupt_all()
        server.cut_off()
        await hub.unwatch(interrupted)
        await asyncio.wait({serving}, timeout=WRITE_REFUSALS_S)
        server.abort()
        await serving

"""Runs a gateway's application with uvicorn."""

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class QuietServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the process it runs in; set `should_exit` to end it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    def cut_off(self) -> None:
        """Close the connections of answers that have begun; what is written reaches the client before."""
        for connection in tuple(self.server_state.connections):
            assert isinstance(connection, HttpToolsProtocol)
            cycle = connection.cycle
            if cycle is not None and cycle.response_started and not cycle.response_complete:
                connection.transport.close()


def create_server(
    app: Starlette,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    shutdown_s: int = 2,
    backlog: int = 2048,
) -> QuietServer:
    """Make a server; `serve()` runs it on host and port, or on sockets that listen already.

    Args:
        app: The application.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        shutdown_s: How long open answers may go on once it is told to exit; streams resume on the next one.
        backlog: Connections that may wait to be taken.
    """
    config = uvicorn.Config(
        app,
        host,
        port,
        loop="none",
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        backlog=backlog,
        timeout_graceful_shutdown=shutdown_s,
    )
    return QuietServer(config)

"""Runs a gateway's application with uvicorn."""

import uvicorn
from starlette.applications import Starlette


def create_server(
    app: Starlette, host: str, port: int, *, shutdown_s: int = 10, backlog: int = 2048
) -> uvicorn.Server:
    """Make a server; `serve()` runs it until it is told to exit.

    Args:
        app: The application.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        shutdown_s: How long open answers may go on once it is told to exit.
        backlog: Connections that may wait to be taken.
    """
    config = uvicorn.Config(
        app,
        host,
        port,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        backlog=backlog,
        timeout_graceful_shutdown=shutdown_s,
    )
    return uvicorn.Server(config)

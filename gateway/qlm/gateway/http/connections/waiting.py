"""Connections that wait to be accepted when their listener is closed.

Their clients are connected and may have sent their request: the end of the listener would reset them.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

ACCEPTED_MAX: Final = 4096
"""Connections accepted of one listener: twice a full backlog, for those that come meanwhile."""


def kept_open(servers: Iterable[asyncio.base_events.Server]) -> list[socket.socket]:
    """Return further descriptors of the listeners of servers, to accept from once the servers are closed."""
    listeners = (each for server in servers for each in server.sockets)
    kept: list[socket.socket] = []
    with suppress(OSError):  # none is free
        kept.extend(socket.fromfd(each.fileno(), each.family, each.type) for each in listeners)
    return kept


def accept_waiting(listener: socket.socket) -> list[socket.socket]:
    """Accept the connections that wait, and close the listener in the moment in which none does."""
    accepted: list[socket.socket] = []
    with listener, suppress(OSError):  # none is left, or no descriptor is free
        listener.setblocking(False)
        while len(accepted) < ACCEPTED_MAX:
            with suppress(ConnectionAbortedError):
                accepted.append(listener.accept()[0])
    return accepted


async def serve_accepted(
    accepted: Iterable[socket.socket], make_protocol: Callable[[], asyncio.Protocol]
) -> None:
    """Serve connections as their listener would have done."""
    loop = asyncio.get_running_loop()
    begun = [loop.connect_accepted_socket(make_protocol, each) for each in accepted]
    await asyncio.gather(*begun, return_exceptions=True)  # a client may have left

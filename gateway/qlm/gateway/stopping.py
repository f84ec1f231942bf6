"""The end of a gateway under load: who waits is answered, or sent to another gateway.

What is still open when the grace is over goes on without this gateway. A plain client gets a 503 that is
worth a retry, with the id of its request. A stream is cut off in the middle: a client that resumes goes on
at another gateway, and one that cannot must not take what it has for the whole answer.
"""

import asyncio
import math
from collections.abc import Collection
from typing import Final

from qlm.gateway.hub import Hub
from qlm.gateway.server import QuietServer

LAST_WORDS_S: Final = 2
"""How long refusals may take to be written once the grace is over."""


async def stop_serving(
    server: QuietServer,
    serving: "asyncio.Task[None]",
    hub: Hub,
    *,
    notice_s: float,
    grace_s: float,
    beside: "Collection[asyncio.Task[None]]" = (),
) -> None:
    """End a server; cancelled meanwhile, at once.

    Args:
        server: The HTTP server.
        serving: Its task.
        hub: The sessions.
        notice_s: How long it goes on as before, but for /readyz, so that balancers notice.
        grace_s: How long open answers may go on after that; nobody can connect any more.
        beside: Other doors that close meanwhile: sessions that came through them have as long.
    """
    hub.stopping = True
    server.config.timeout_graceful_shutdown = math.ceil(grace_s) + LAST_WORDS_S
    try:
        if notice_s > 0:
            await asyncio.wait({serving}, timeout=notice_s)
        server.should_exit = True
        await asyncio.wait({serving, *beside}, timeout=grace_s)
    finally:
        server.should_exit = True
        let_go = hub.break_off()
        server.cut_off()
        await hub.unwatch(let_go)
        await serving

"""Look-ups of names, in threads of their own: one that hangs holds back nothing else."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult

THREADS_MAX: Final = 2
"""Look-ups of one name at a time."""


async def look_up(
    threads: ThreadPoolExecutor, host: str, port: int, family: socket.AddressFamily
) -> list[ResolveResult]:
    """Return the addresses of a name, by the system's resolver in one of some threads.

    Raises:
        OSError: It has none, or it cannot be looked up now.
        UnicodeError: It is no name.
    """
    ask = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    found = await asyncio.get_running_loop().run_in_executor(threads, ask)
    return [
        ResolveResult(
            hostname=host,
            host=str(address[0]),
            port=port,
            family=of,
            proto=protocol,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for of, _, protocol, _, address in found
    ]


class ThreadsResolver(AbstractResolver):
    """Looks names up with the system's resolver, each in threads of its own.

    There are as many names as endpoints at most. A look-up whose attempt is over goes on in its thread; one
    that has not begun is not made.
    """

    def __init__(self) -> None:
        self._threads: dict[str, ThreadPoolExecutor] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name.

        Raises:
            OSError: It has none, or it cannot be looked up now.
            UnicodeError: It is no name.
        """
        threads = self._threads.get(host)
        if threads is None:
            threads = self._threads[host] = ThreadPoolExecutor(THREADS_MAX, "webhook-names")
        return await look_up(threads, host, port, family)

    async def close(self) -> None:
        """Begin no further look-up."""
        for each in self._threads.values():
            each.shutdown(wait=False, cancel_futures=True)


class SharedResolver(AbstractResolver):
    """Looks names up in a few threads that all share, for names of which there may be any number."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "outbound-names")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name.

        Raises:
            OSError: It has none, or it cannot be looked up now.
            UnicodeError: It is no name.
        """
        return await look_up(self._threads, host, port, family)

    async def close(self) -> None:
        """Begin no further look-up."""
        self._threads.shutdown(wait=False, cancel_futures=True)

"""Look-ups of names, in threads: one that hangs does not hold the event loop back."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from aiohttp.abc import AbstractResolver, ResolveResult


class ThreadsResolver(AbstractResolver):
    """Looks names up with the system's resolver, in threads.

    A look-up whose attempt is over goes on in its thread; one that has not begun is not made.
    """

    def __init__(self, threads_max: int, *, of_each_name: bool) -> None:
        """Use so many threads.

        Args:
            threads_max: Look-ups at a time.
            of_each_name: Each name has so many: names are few, and one that hangs holds no other back.
        """
        self._threads_max, self._of_each_name = threads_max, of_each_name
        self._threads: dict[str, ThreadPoolExecutor] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name.

        Raises:
            OSError: It has none, or it cannot be looked up now.
            UnicodeError: It is no name.
        """
        key = host if self._of_each_name else ""
        threads = self._threads.get(key)
        if threads is None:
            threads = self._threads[key] = ThreadPoolExecutor(self._threads_max, "outbound-names")
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

    async def close(self) -> None:
        """Begin no further look-up."""
        for each in self._threads.values():
            each.shutdown(wait=False, cancel_futures=True)

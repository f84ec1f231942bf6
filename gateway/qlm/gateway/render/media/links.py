"""Fetching of media that clients name by URL: from public addresses, within limits of size and time."""

import asyncio
import base64
import re
from collections.abc import Sequence
from typing import Final

import aiohttp

from qlm.domain.shown import shown
from qlm.gateway.api.errors import ApiError, invalid
from qlm.gateway.outbound.addresses import AddressRefusedError, Network, guarded_socket
from qlm.gateway.outbound.resolver import ThreadsResolver
from qlm.gateway.render.media.limits import MediaLimits

SETTING: Final = "media.allowed_networks"
_REQUESTS_MAX: Final = 12
"""Requests whose media are fetched at a time: each may hold `bytes_max`."""

OF_A_REQUEST_MAX: Final = 4
_CONNECTIONS_MAX: Final = _REQUESTS_MAX * OF_A_REQUEST_MAX
"""No fetch waits for a connection: its time limit is that of the server alone."""

_NAME_THREADS: Final = 64
_TYPE: Final = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)
_REDIRECTS_MAX: Final = 3
_PIECE_BYTES: Final = 65_536
_UNKNOWN_TYPE: Final = "application/octet-stream"


class Room:
    """Bytes that are left for the media of one request, all of its answers together."""

    def __init__(self, limits: MediaLimits, answers: int) -> None:
        """Begin with `media.bytes_max`, of which each answer needs a copy."""
        self._left = limits.bytes_max // answers
        self._expected = f"expected at most {limits.bytes_max} (media.bytes_max)"
        if answers > 1:
            self._expected += f" for {answers} answers together"

    def take(self, size: int, where: str) -> None:
        """Use some of them.

        Raises:
            ApiError: There are not as many left.
        """
        self._left -= size
        if self._left < 0:
            message = f"the media of the request have too many bytes; {self._expected}"
            raise invalid(where, message, "media_too_large")


class Links:
    """Fetches media; create it inside the event loop that will use it.

    It knows no proxy and keeps no cookies. Each connection, those after a redirect included, goes to a public
    address or to an allowed network.

    Attributes:
        limits: Limits of all media.
        turns: Turns of requests with media to fetch.
    """

    def __init__(self, limits: MediaLimits | None = None, networks: Sequence[Network] = ()) -> None:
        """Connect with the first fetch; `networks` are allowed although they are not public."""
        self.limits: Final = limits or MediaLimits()
        self.turns: Final = asyncio.Semaphore(_REQUESTS_MAX)
        self._resolver = ThreadsResolver(_NAME_THREADS, of_each_name=False)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=_CONNECTIONS_MAX,
                use_dns_cache=False,
                resolver=self._resolver,
                socket_factory=guarded_socket(networks, SETTING),
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"user-agent": "QLM", "accept": "*/*"},
            timeout=aiohttp.ClientTimeout(total=self.limits.timeout_s),
            trust_env=False,
        )

    async def data_url(self, url: str, where: str, room: Room) -> str:
        """Return what a URL leads to as a `data:` URL.

        Args:
            url: The URL.
            where: Place in the request, for errors.
            room: What is left for the media of its request.

        Raises:
            ApiError: It cannot be fetched, or is too large.
        """
        try:
            async with self._session.get(url, max_redirects=_REDIRECTS_MAX) as answer:
                if answer.status != 200:
                    raise _unavailable(where, url, f"it answered {answer.status}")
                data = bytearray()
                async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                    room.take(len(piece), where)
                    data += piece
                kind = answer.content_type
        except ApiError:
            raise
        except TimeoutError as error:
            raise _unavailable(where, url, f"it took more than {self.limits.timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _unavailable(where, url, _why(error)) from error
        if not data:
            raise _unavailable(where, url, "it has no data")
        text = await asyncio.to_thread(base64.b64encode, bytes(data))
        return f"data:{kind if _TYPE.fullmatch(kind) else _UNKNOWN_TYPE};base64,{text.decode()}"

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
        await self._resolver.close()


def _unavailable(where: str, url: str, why: str) -> ApiError:
    message = f"{where} is {shown(url)}; expected a URL that can be fetched: {why}"
    return invalid(where, message, "media_unavailable")


def _why(error: Exception) -> str:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, AddressRefusedError):
        return str(cause)
    return type(cause).__name__

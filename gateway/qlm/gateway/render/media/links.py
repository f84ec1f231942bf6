"""Fetching of media that clients name by URL: from public addresses, within limits of size and time."""

import asyncio
import base64
from collections.abc import Sequence
from typing import Final

import aiohttp

from qlm.domain.shown import shown
from qlm.gateway.api.errors import ApiError, invalid
from qlm.gateway.outbound.addresses import AddressRefusedError, Network, guarded_socket
from qlm.gateway.outbound.resolver import SharedResolver
from qlm.gateway.render.media.limits import MediaLimits

SETTING: Final = "media.allowed_networks"
_CONNECTIONS_MAX: Final = 32
_OF_A_HOST_MAX: Final = 8
_NAME_THREADS: Final = 8
_REDIRECTS_MAX: Final = 3
_PIECE_BYTES: Final = 65_536
_UNKNOWN_TYPE: Final = "application/octet-stream"


class Links:
    """Fetches media; create it inside the event loop that will use it.

    It knows no proxy and keeps no cookies. Each connection, those after a redirect included, goes to a public
    address or to an allowed network.

    Attributes:
        limits: Limits of all media.
    """

    def __init__(self, limits: MediaLimits | None = None, networks: Sequence[Network] = ()) -> None:
        """Connect with the first fetch; `networks` are allowed although they are not public."""
        self.limits: Final = limits or MediaLimits()
        self._resolver = SharedResolver(_NAME_THREADS)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=_CONNECTIONS_MAX,
                limit_per_host=_OF_A_HOST_MAX,
                use_dns_cache=False,
                resolver=self._resolver,
                socket_factory=guarded_socket(networks, SETTING),
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"user-agent": "QLM", "accept": "*/*"},
            timeout=aiohttp.ClientTimeout(total=self.limits.timeout_s),
            trust_env=False,
        )

    async def data_url(self, url: str, where: str, bytes_max: int) -> tuple[str, int]:
        """Return what a URL leads to as a `data:` URL, and its size in bytes.

        Args:
            url: The URL.
            where: Place in the request, for errors.
            bytes_max: Most bytes.

        Raises:
            ApiError: It cannot be fetched, or is too large.
        """
        try:
            async with self._session.get(url, max_redirects=_REDIRECTS_MAX) as answer:
                if answer.status != 200:
                    raise _unavailable(where, url, f"it answered {answer.status}")
                data = bytearray()
                async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                    data += piece
                    if len(data) > bytes_max:
                        raise too_large(where, self.limits)
                kind = answer.content_type or _UNKNOWN_TYPE
        except ApiError:
            raise
        except TimeoutError as error:
            raise _unavailable(where, url, f"it took more than {self.limits.timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _unavailable(where, url, _why(error)) from error
        text = await asyncio.to_thread(base64.b64encode, bytes(data))
        return f"data:{kind};base64,{text.decode()}", len(data)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
        await self._resolver.close()


def too_large(where: str, limits: MediaLimits) -> ApiError:
    """Return the error of a request whose media are too large together."""
    expected = f"expected at most {limits.bytes_max} (media.bytes_max)"
    return invalid(where, f"the media up to {where} have too many bytes; {expected}", "media_too_large")


def _unavailable(where: str, url: str, why: str) -> ApiError:
    message = f"{where} is {shown(url)}; expected a URL that can be fetched: {why}"
    return invalid(where, message, "media_unavailable")


def _why(error: Exception) -> str:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, AddressRefusedError):
        return str(cause)
    return type(cause).__name__

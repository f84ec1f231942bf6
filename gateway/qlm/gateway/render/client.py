"""HTTP client of a render tier: `vllm launch render` (0.32), or any server with its routes.

All its calls can be repeated: a render tier has no state.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
import orjson

from qlm.domain.ports.clock import Clock
from qlm.gateway.api.errors import OVERFLOW, ApiError, invalid, too_long, unavailable
from qlm.gateway.render.breaker import Breaker
from qlm.gateway.render.turns import Turns

_log = logging.getLogger(__name__)

UNAVAILABLE: Final = "render_unavailable"

_SHOWN_MAX: Final = 300
_CONNECTIONS_MAX: Final = 64
_KEEPALIVE_S: Final = 4.0
"""Lifetime of an idle connection: less than the 5 s of vLLM (`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`)."""
_CONNECT_S: Final = 5.0
_NETWORK_ERRORS: Final = (aiohttp.ClientError, TimeoutError, OSError)
_STALE: Final = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)
_AWAY_STATUSES: Final = frozenset({502, 503, 504})
_WRONG_REQUEST: Final = frozenset({400, 413, 422, 501})


class RenderClient:
    """Client of the render tier of one model; create it inside the event loop that will use it.

    Attributes:
        url: Base address; a tier that is started again may get another one.
        turns: Turns of streams, which cut the pieces of their answers when they have one.
    """

    def __init__(self, url: str, model: str, clock: Clock, *, timeout_s: float = 30.0) -> None:
        """Connect with the first call.

        Args:
            url: Base address, such as `http://127.0.0.1:8200`.
            model: The model, as the render tier serves it.
            clock: The time.
            timeout_s: Limit for each call.
        """
        self.url = url.rstrip("/")
        self.turns: Final = Turns()
        self._model = model
        self._timeout_s = timeout_s
        self._breaker = Breaker(clock)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS_MAX, keepalive_timeout=_KEEPALIVE_S),
            headers={"content-type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(timeout_s, _CONNECT_S)),
        )

    async def render(self, request: Mapping[str, Any], *, large: bool = False) -> dict[str, Any]:
        """Return token ids and sampling parameters of a conversation.

        Args:
            request: The conversation.
            large: It may have megabytes: other calls go on while it is written.

        Raises:
            ApiError: The tier refuses the request (400), fails (500), or is away (503).
        """
        status, answer = await self._call("/v1/chat/completions/render", request, large=large)
        if status in _WRONG_REQUEST:
            raise _refusal(*_error_of(answer))
        return self._checked(status, answer)

    async def derender(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a message of token ids, or the delta that a piece of them makes.

        Raises:
            ApiError: The tier fails (500), or is away (503).
        """
        return self._checked(*await self._call("/v1/chat/completions/derender", request))

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def _post(self, url: str, data: bytes) -> tuple[int, bytes]:
        for retries_left in (1, 0):
            try:
                async with self._session.post(url, data=data) as response:
                    return response.status, await response.read()
            except _NETWORK_ERRORS as error:
                # It may have closed a kept-alive connection just as we used it.
                if isinstance(error, _STALE) and retries_left:
                    continue
                if _is_slow(error):
                    # The fault of one large call, perhaps: it says nothing of the calls of others.
                    raise self._away(f"it did not answer within {self._timeout_s:g} s") from error
                raise self._failed(str(error) or type(error).__name__) from error
        raise AssertionError("the last attempt returns or raises")

    async def _call(self, path: str, body: Mapping[str, Any], *, large: bool = False) -> tuple[int, Any]:
        if self._breaker.is_open:
            raise self._away("it did not answer the last calls")
        written = await asyncio.to_thread(orjson.dumps, body) if large else orjson.dumps(body)
        status, data = await self._post(self.url + path, written)
        if status in _AWAY_STATUSES:
            raise self._failed(f"it answered {status}")
        self._breaker.answered()
        try:
            return status, orjson.loads(data)
        except orjson.JSONDecodeError:
            return status, data[:_SHOWN_MAX].decode(errors="replace")

    def _checked(self, status: int, answer: Any) -> dict[str, Any]:
        if status == 200 and isinstance(answer, dict):
            return answer
        message = f"the render tier of {self._model} answered {status}: {_error_of(answer)[0]}"
        raise ApiError(status=500, message=message, kind="server_error", code="render_failed")

    def _failed(self, why: str) -> ApiError:
        if self._breaker.failed():
            _log.warning("the render tier of %s at %s is away: %s", self._model, self.url, why)
        return self._away("it does not answer")

    def _away(self, why: str) -> ApiError:
        return unavailable(f"the render tier of {self._model} is away: {why}", UNAVAILABLE)


def _is_slow(error: Exception) -> bool:
    """Return whether a server has accepted a call, and did not answer it in time."""
    return isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError)


def _refusal(message: str, param: str | None) -> ApiError:
    if message.startswith(OVERFLOW):
        return too_long("messages", message, f"prompt is too long: {message}")
    return invalid(param, message)


def _error_of(answer: Any) -> tuple[str, str | None]:
    """Return message and field of vLLM's error."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        return str(answer)[:_SHOWN_MAX], None
    param = error.get("param")
    return str(error.get("message")), param if isinstance(param, str) else None

"""Clients that survive faults: they retry at another gateway and resume where they were."""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import aiohttp

from benchmarks.chaos.client_request import ClientRequest

AGAIN_S: Final = 0.1
"""Pause after a broken or refused connection."""

POLL_S: Final = (0.3, 3.0)
"""First and longest pause between polls of an asynchronous request; each is half again as long."""

_AGAIN: Final = (429, 503)
_LOST: Final = ("engine_lost", "output_lost")


class Clients:
    """Sends requests to gateways until they are answered.

    Attributes:
        gone: Ids of requests that had ended, and whose answers were then deleted from Redis.
    """

    def __init__(self, urls: Sequence[str], rng: random.Random, gone: set[str] | None = None) -> None:
        self._urls = list(urls)
        self._rng = rng
        self.gone: set[str] = set() if gone is None else gone
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=5)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=2, sock_read=30)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        self._ask: dict[str, Callable[[ClientRequest, str], Awaitable[None]]] = {
            "stream": self._stream,
            "plain": self._plain,
            "async": self._asynchronous,
        }

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def carry(self, one: ClientRequest) -> None:
        """Send a request until it is answered or has a final error."""
        gateway = self._rng.randrange(len(self._urls))
        while not one.over:
            try:
                await self._ask[one.kind](one, self._urls[gateway % len(self._urls)])
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                gateway += 1
                one.breaks += 1
                one.cuts += isinstance(error, aiohttp.ClientPayloadError)
                await asyncio.sleep(AGAIN_S)
        if one.finish == "output_lost" and not one.text and one.id in self.gone:
            one.finish = "gone"  # its stream had delivered nothing when Redis was emptied

    async def _stream(self, one: ClientRequest, url: str) -> None:
        """Open the stream, or resume it after the last received token."""
        if one.id:
            last = one.offsets[-1] if one.offsets else 0
            opened = self._session.get(
                f"{url}/v1/requests/{one.id}/events", headers={"Last-Event-ID": str(last)}
            )
        else:
            opened = self._post(one, url)
        async with opened as answer:
            if answer.status == 200:
                _accept(one, answer.headers["x-request-id"])
                await _read(answer.content, one)
            else:
                await self._refused(one, answer)

    async def _plain(self, one: ClientRequest, url: str) -> None:
        async with self._post(one, url) as answer:
            if answer.status != 200:
                await self._refused(one, answer)
                return
            whole = await answer.json()
            _accept(one, answer.headers["x-request-id"])
            _take(one, whole)

    async def _asynchronous(self, one: ClientRequest, url: str) -> None:
        if not one.id:
            async with self._post(one, url, {"Prefer": "respond-async"}) as answer:
                if answer.status != 202:
                    await self._refused(one, answer)
                    return
                _accept(one, (await answer.json())["id"])
        await asyncio.sleep(min(POLL_S[1], POLL_S[0] * 1.5**one.looks))
        one.looks += 1
        async with self._session.get(f"{url}/v1/requests/{one.id}") as answer:
            if answer.status != 200:
                await self._refused(one, answer)
                return
            record = await answer.json()
        if record["status"] != "ended":
            return
        if "response" not in record:
            _end(one, record["error"]["code"])  # now: an answer can be deleted after the request has ended
            return
        _take(one, record["response"])
        # The server's time of the end: the poll was up to three seconds later.
        one.over_s = min(time.monotonic(), record["ended_s"] - time.time() + time.monotonic())

    def _post(
        self, one: ClientRequest, url: str, headers: dict[str, str] | None = None
    ) -> "aiohttp.client._RequestContextManager":
        keyed = {"Idempotency-Key": one.key, "x-qlm-stream": "resumable", **(headers or {})}
        return self._session.post(f"{url}/v1/completions", json=one.body, headers=keyed)

    async def _refused(self, one: ClientRequest, answer: aiohttp.ClientResponse) -> None:
        """Wait for a retry if the error allows one; any other error to an accepted request is a fault."""
        text = await answer.text()
        if one.id and (code := _code(text)) in _LOST:
            _end(one, code)
        elif one.id in self.gone:
            _end(one, "gone")
        elif answer.status in _AGAIN:
            one.refused += 1
            await asyncio.sleep(float(answer.headers.get("retry-after-ms", "1000")) / 1000)
        else:
            one.trouble = f"{answer.status} {text[:300]}"
            _end(one, str(answer.status))


async def _read(content: aiohttp.StreamReader, one: ClientRequest) -> None:
    """Read events; an incomplete one is ignored, and comes again on the next connection."""
    offset, data = 0, ""
    async for raw in content:
        line = raw.decode().rstrip("\r\n")
        if line.startswith("id: "):
            offset = int(line.removeprefix("id: "))
        elif line.startswith("data: "):
            data = line.removeprefix("data: ")
        elif not line and data:
            if data != "[DONE]":
                _shown(one, offset, json.loads(data))
            data = ""


def _shown(one: ClientRequest, offset: int, event: dict[str, Any]) -> None:
    if "error" in event:
        _end(one, event["error"]["code"])
        return
    choice = event["choices"][0]
    if choice["text"]:
        one.text.append(choice["text"])
        one.offsets.append(offset)
        one.token_s.append(time.monotonic())
    if choice["finish_reason"]:
        _end(one, choice["finish_reason"])


def _code(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""


def _accept(one: ClientRequest, id: str) -> None:
    if one.id and one.id != id:
        one.trouble = f"key {one.key} was request {one.id} and is now {id}"
    one.id = id
    one.accepted_s = one.accepted_s or time.monotonic()


def _take(one: ClientRequest, whole: dict[str, Any]) -> None:
    choice = whole["choices"][0]
    one.text.append(choice["text"])
    _end(one, choice["finish_reason"])


def _end(one: ClientRequest, finish: str) -> None:
    one.ends += 1
    one.finish = finish
    one.over_s = time.monotonic()

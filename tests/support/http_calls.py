"""What tests of the gateway over HTTP send, and how they read its answers."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson

from qlm.domain.ids import RequestId
from qlm.domain.request import RequestState
from qlm.domain.view import RequestFilter
from support.gateway import Cluster

CHAT: dict[str, Any] = {"model": "emulated", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION: dict[str, Any] = {"model": "emulated", "prompt": "Hi"}
RESUMABLE = {"x-qlm-stream": "resumable"}
ANSWER = "Hello, world!"
QUEUED = RequestFilter(state=RequestState.QUEUED)


class Events:
    """A stream read block by block."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()
        self.last_id: str | None = None

    async def __aiter__(self) -> AsyncIterator[str]:
        async for line in self._lines:
            if line.startswith("id: "):
                self.last_id = line[4:]
            if line.startswith("data: "):
                yield line[6:]

    async def text(self, *, until_tokens: int | None = None, until_text: str | None = None) -> str:
        """Join the text of completion events, up to the one with that id, to that text, or to the end."""
        pieces = []
        async for data in self:
            if data == "[DONE]":
                break
            for choice in orjson.loads(data)["choices"]:
                pieces.append(choice["text"])
            if until_tokens is not None and self.last_id == str(until_tokens):
                break
            if until_text is not None and "".join(pieces) == until_text:
                break
        return "".join(pieces)


def refusal(response: httpx.Response) -> dict[str, Any]:
    """The error object, after checking what all errors have."""
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
    return error


async def abandoned(
    http: httpx.AsyncClient, cluster: Cluster, url: str, body: dict[str, Any], **headers: str
) -> RequestId:
    """Start a stream, read its first tokens, leave."""
    cluster.agent.pause_at = 3
    asked = body | {"stream": True}
    async with http.stream("POST", f"{url}/v1/completions", json=asked, headers=headers) as response:
        await Events(response).text(until_text=ANSWER[:3])
        return RequestId(response.headers["x-request-id"])


async def open_requests(http: httpx.AsyncClient, admin_url: str, count: int) -> bool:
    return f"qlm_gateway_open_requests {count:.1f}\n" in (await http.get(f"{admin_url}/metrics")).text


async def ended(http: httpx.AsyncClient, url: str, id: str) -> bool:
    return bool((await http.get(f"{url}/v1/requests/{id}")).json()["status"] == "ended")

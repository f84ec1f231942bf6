"""Minimal proxy of streams in the same language: what is left of QLM without a queue, an agent and a store.

    python benchmarks/streams/floor.py PORT ENGINE_URL

It translates `POST /v1/completions` with ids of byte tokens to the engine's call and back, unchecked.
"""

import asyncio
import sys
from functools import partial
from typing import Any, cast

import httptools
import orjson
import uvloop

from qlm.agents.engines.http.client import StreamClient
from qlm.agents.engines.vllm.stream import EngineStream
from qlm.domain.ids import TokenIds

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_KEPT = ("temperature", "max_tokens", "ignore_eos")


class Proxied(asyncio.Protocol):
    """One connection of a client, with one request."""

    def __init__(self, engine: StreamClient) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._transport: asyncio.Transport | None = None
        self._serving: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._serving = asyncio.get_running_loop().create_task(self._serve(orjson.loads(self._body)))

    async def _serve(self, asked: dict[str, Any]) -> None:
        assert self._transport is not None
        self._transport.write(_HEAD)
        sampling = {"detokenize": False} | {name: asked[name] for name in _KEPT}
        call = {"model": asked["model"], "token_ids": asked["prompt"], "sampling_params": sampling}
        stream = EngineStream()
        body = orjson.dumps(call | {"stream": True})
        await self._engine.post(body, {}, partial(self._feed, stream))
        last = stream.last()
        frame = b"" if last is None else _frame(last.token_ids)
        self._transport.write(_chunk(frame + b"data: [DONE]\n\n") + b"0\r\n\r\n")
        self._transport.close()

    def _feed(self, stream: EngineStream, data: bytes) -> None:
        assert self._transport is not None
        if (chunk := stream.feed(data)) is not None:
            self._transport.write(_chunk(_frame(chunk.token_ids)))


def _frame(ids: TokenIds) -> bytes:
    text = bytes(id for id in ids if id < 256).decode(errors="replace")
    return b'data: {"object":"text_completion","choices":[{"index":0,"text":%b}]}\n\n' % orjson.dumps(text)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(port: int, engine_url: str) -> None:
    """Proxy until killed."""
    engine = StreamClient(
        engine_url,
        "/inference/v1/generate",
        {"content-type": "application/json"},
        connect_s=10.0,
        idle_max_s=4.0,
    )
    server = await asyncio.get_running_loop().create_server(
        lambda: Proxied(engine), "127.0.0.1", port, backlog=2048
    )
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2]))

"""Clients of HTTP/1.0, which know no chunks, such as proxies that speak it with what is behind them."""

import orjson

from support.gateway import Cluster
from support.raw_http import Connect

ANSWER = "Hello, world!"


async def _answer(cluster: Cluster, connect: Connect, *, stream: bool) -> tuple[bytes, bytes]:
    """Return the head of an answer, and its body as it is on the connection."""
    body = orjson.dumps({"model": "emulated", "prompt": "Hi", "stream": stream})
    client = await connect(await cluster.gateway())
    client.send(b"POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\n")
    client.send(b"content-length: %d\r\n\r\n" % len(body) + body)
    head, _, rest = (await client.reader.read()).partition(b"\r\n\r\n")
    return head.lower(), rest


async def test_a_stream_comes_without_chunks(cluster: Cluster, connect: Connect) -> None:
    head, body = await _answer(cluster, connect, stream=True)
    assert b"transfer-encoding" not in head and b"connection: close" in head
    *events, last, rest = body.split(b"\n\n")
    assert (last, rest) == (b"data: [DONE]", b"")
    texts = [orjson.loads(event.removeprefix(b"data: "))["choices"][0]["text"] for event in events]
    assert "".join(texts) == ANSWER


async def test_a_whole_answer_has_its_length(cluster: Cluster, connect: Connect) -> None:
    head, body = await _answer(cluster, connect, stream=False)
    assert b"content-length: %d" % len(body) in head
    assert orjson.loads(body)["choices"][0]["text"] == ANSWER

"""Answers to clients of HTTP/1.0, which know no chunks: what has no length ends with the connection."""

from typing import Any


def answer_unchunked(cycle: Any) -> None:
    """Let uvicorn's request `cycle` write bodies as they are."""
    send = cycle.send
    cycle.chunked_encoding = False  # else uvicorn decides for chunks, whatever the version

    async def send_as_is(message: Any) -> None:
        if message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_as_is

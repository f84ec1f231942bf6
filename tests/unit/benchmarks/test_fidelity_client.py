import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fidelity_client import BadAnswerError, token_times

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(token_ids: list[int]) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "token_ids": token_ids}]}).encode() + b"\n\n"


def chunk(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


def whole(groups: list[list[int]]) -> bytes:
    body = [chunk(event(group)) for group in groups]
    return HEAD + b"".join(body) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


@given(
    st.lists(st.lists(st.integers(0, 1999), min_size=0, max_size=3), min_size=1, max_size=12),
    st.lists(st.integers(1, 40), min_size=1, max_size=20),
)
def test_each_token_has_the_time_at_which_its_event_was_complete_however_the_bytes_came(
    groups: list[list[int]], sizes: list[int]
) -> None:
    raw = whole(groups)
    arrived: list[tuple[float, bytes]] = []
    cut = 0
    while cut < len(raw):
        size = sizes[len(arrived) % len(sizes)]
        arrived.append((float(len(arrived)), raw[cut : cut + size]))
        cut += size
    expected = []
    complete = len(HEAD)
    for group in groups:
        body = event(group)
        complete += len(f"{len(body):x}\r\n") + len(body)
        piece = received = 0
        while received < complete:
            received += len(arrived[piece][1])
            piece += 1
        expected += [float(piece - 1)] * len(group)
        complete += len("\r\n")
    assert token_times(arrived) == expected


def test_an_error_is_no_answer() -> None:
    refused = b'HTTP/1.1 400 Bad Request\r\ncontent-length: 17\r\n\r\n{"error": "full"}'
    with pytest.raises(BadAnswerError, match=r"answered 400: .*full"):
        token_times([(0.0, refused)])


def test_an_error_within_a_stream_is_no_answer() -> None:
    dead = chunk(b'data: {"error": {"message": "EngineCore encountered an issue"}}\n\n')
    with pytest.raises(BadAnswerError, match="EngineCore encountered an issue"):
        token_times([(0.0, HEAD + chunk(event([1])) + dead)])

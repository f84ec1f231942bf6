"""Loads and figures of the benchmark of streams."""

import asyncio

import pytest

from benchmarks.streams.client import Stream
from benchmarks.streams.load import KINDS, parse_load
from benchmarks.streams.measure import figures


def test_a_burst_starts_its_streams_evenly_and_equally_for_equal_seeds() -> None:
    load = parse_load("3x20")
    requests = load.requests("m", 10.0, 1)
    assert [at_s for at_s, _ in requests] == [0.0, 0.002, 0.004]
    assert {body["max_tokens"] for _, body in requests} == {20}
    assert requests == load.requests("m", 10.0, 1) != load.requests("m", 10.0, 2)
    assert len({tuple(body["prompt"]) for _, body in requests}) == 3, "no prompt may be in a cache"


def test_an_open_loop_has_poisson_arrivals_for_its_time() -> None:
    times = [at_s for at_s, _ in parse_load("50/s:4").requests("m", 20.0, 1)]
    assert times == sorted(times) and times[-1] < 20.0
    assert 900 < len(times) < 1100


def test_kinds_differ_in_what_they_ask_for() -> None:
    (chat,), (call,) = (
        [body for _, body in parse_load(f"1x20+{kind}").requests("m", 1.0, 1)] for kind in KINDS[1:]
    )
    assert "messages" in chat and chat["max_tokens"] == 20 and "tools" not in chat
    assert call["tool_choice"] == "required" and "max_tokens" not in call


@pytest.mark.parametrize("text", ["20", "x20", "20/s", "a/s:4", "20x20+song", "20x20+"])
def test_another_text_is_no_load(text: str) -> None:
    with pytest.raises(ValueError, match="expected STREAMSxTOKENS or RATE/s:TOKENS"):
        parse_load(text)


def test_times_are_over_streams_and_gaps_over_their_events() -> None:
    made = figures([[0.1, 0.2, 0.4], [0.3, 0.31, 0.33]], 12, {"serve": 0.024})
    assert (made.ttft_p50_ms, made.ttft_p95_ms) == pytest.approx((200.0, 300.0))
    assert (made.gap_p50_ms, made.gap_p99_ms) == pytest.approx((60.0, 200.0))
    assert (made.tokens_per_event, made.requests, made.tokens) == (2.0, 2, 12)
    assert made.processor_s == {"serve": pytest.approx(2.0)}


class SilentTransport(asyncio.Transport):
    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send nothing."""

    def close(self) -> None:
        """Close nothing."""


@pytest.mark.parametrize("cut", range(13))
async def test_the_end_of_a_stream_is_seen_in_whatever_reads_it_comes(cut: int) -> None:
    stream = Stream(b"", 0.0)
    stream.connection_made(SilentTransport())
    stream.data_received(b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n" + b"data: [DONE]"[:cut])
    stream.data_received(b"data: [DONE]"[cut:] + b"\n\n")
    assert stream.ended.done() and stream.ended.result() == ""
    assert stream.tokens is None


async def test_a_stream_with_its_usage_has_the_tokens_of_that() -> None:
    stream = Stream(b"", 0.0)
    stream.connection_made(SilentTransport())
    stream.data_received(b'HTTP/1.1 200 OK\r\n\r\ndata: {"usage":{"completion_')
    stream.data_received(b'tokens":17}}\n\ndata: [DONE]\n\n')
    assert stream.tokens == 17

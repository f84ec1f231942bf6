"""Durations of iterations from the arrival times of tokens."""

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_WINDOW_TOKENS_MIN: Final = 8
_CHUNK_SHARE_MIN: Final = 0.5
"""An iteration shorter than this share of the others computed less of a prompt than they did."""

Arrivals = Sequence[tuple[int, int]]
"""Arrival time of each chunk of one stream, ns, with the tokens received up to it."""


def steady_ms(streams: Sequence[Arrivals], dropped_tokens: int) -> tuple[float, float] | None:
    """Compute the time of one decode iteration from streams that ran concurrently.

    Args:
        streams: Streams of one batch; at least one.
        dropped_tokens: First tokens of each stream that are not timed.

    Returns:
        Milliseconds per token while all streams ran (median over streams), and the mean number of tokens
        generated until then; None if the streams overlapped too little.
    """
    starts = [next((ns for ns, n in stream if n > dropped_tokens), None) for stream in streams]
    if None in starts:
        return None
    start_ns = max(ns for ns in starts if ns is not None)
    end_ns = min(stream[-1][0] for stream in streams)
    paces, generated = [], []
    for stream in streams:
        window = [(ns, n) for ns, n in stream if start_ns <= ns <= end_ns]
        if len(window) < 2 or window[-1][1] - window[0][1] < _WINDOW_TOKENS_MIN:
            return None
        (first_ns, first), (last_ns, last) = window[0], window[-1]
        paces.append((last_ns - first_ns) / 1e6 / (last - first))
        generated.append((first + last) / 2)
    return statistics.median(paces), statistics.fmean(generated)


def iterations_until(stream: Arrivals, at_ns: float, count: int) -> tuple[list[float], int] | None:
    """Time the last iterations up to one that ended about `at_ns`, by a stream that decodes meanwhile.

    Its tokens end the iterations, so the time between two of them is one iteration, without the network, and
    whether or not the engine schedules ahead.

    Args:
        stream: Arrivals up to some time after `at_ns`.
        at_ns: Arrival of a token of another request that ended with the last iteration.
        count: Number of iterations.

    Returns:
        Milliseconds of `count` iterations and of the one before them, in order, and the tokens of the stream
        at the last one; None if the stream began too late, or tokens of several iterations came as one chunk.
    """
    last = min(range(len(stream)), key=lambda n: abs(stream[n][0] - at_ns))
    window = stream[max(0, last - count - 1) : last + 1]
    if len(window) < count + 2 or window[-1][1] - window[0][1] != count + 1:
        return None
    pairs = pairwise(window)
    return [(after[0] - before[0]) / 1e6 for before, after in pairs], stream[last][1]


def are_chunks(times_ms: Sequence[float], decode_ms: float) -> bool:
    """Whether iterations computed all of a prompt, in equal chunks but for the last, and none before them.

    Args:
        times_ms: Times of the iteration before, and of those that should have computed the prompt.
        decode_ms: Time of an iteration without a prompt.
    """
    before, *chunks = times_ms
    if before > _CHUNK_SHARE_MIN * chunks[0] + decode_ms:
        return False
    usual_ms = statistics.median(chunks[:-1] or chunks)
    return all(ms >= _CHUNK_SHARE_MIN * usual_ms and ms > decode_ms for ms in chunks[:-1])

"""Durations of iterations from the arrival times of tokens."""

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_WINDOW_TOKENS_MIN: Final = 8
_CHUNK_SHARE_MIN: Final = 0.5
"""An iteration shorter than this share of the others computed less of a prompt than they did."""

_DECODE_MARGIN: Final = 0.35
"""Single iterations of decodes on an H100 took up to 29 % longer than their median."""
_LAST_MARGIN: Final = 0.25
"""Later chunks attend to more tokens, so that the last one takes longer than by its tokens alone."""

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


def token_at(stream: Arrivals, at_ns: float) -> int:
    """Return the index of the arrival next to a time."""
    return min(range(len(stream)), key=lambda n: abs(stream[n][0] - at_ns))


def iterations_until(
    stream: Arrivals, at_ns: float, count: int, before: int = 1
) -> tuple[list[float], int] | None:
    """Time the last iterations up to one that ended about `at_ns`, by a stream that decodes meanwhile.

    Its tokens end the iterations, so the time between two of them is one iteration, without the network.

    Args:
        stream: Arrivals up to some time after `at_ns`.
        at_ns: Arrival of a token of another request that ended with the last iteration.
        count: Number of iterations.
        before: Number of iterations before these, which are timed, too.

    Returns:
        Milliseconds of `before + count` iterations, in order, and the tokens of the stream at the last one;
        None if the stream began too late, or tokens of several iterations came as one chunk.
    """
    last = token_at(stream, at_ns)
    window = stream[max(0, last - count - before) : last + 1]
    if len(window) < count + before + 1 or window[-1][1] - window[0][1] != count + before:
        return None
    pairs = pairwise(window)
    return [(after[0] - before[0]) / 1e6 for before, after in pairs], stream[last][1]


def without_delay(times_ms: Sequence[float], decode_ms: float) -> list[float]:
    """Give the first iteration of a prompt the time back by which the token before it came late.

    An engine that schedules ahead sends the tokens of an iteration once it has started the next one. To start
    one with a prompt takes the host longer than the accelerator decodes: by 0.5 to 32 ms for an 8B model on
    an H100, and not the same for the same prompt (`tests/unit/cli/arrivals_h100.json`). The token before the
    prompt is late by that, and its iteration seems to be shorter. Together they have the right time. Further
    chunks of a prompt are taken to hide the start of the next iteration, since they last longer; no engine
    was recorded with several.

    Args:
        times_ms: Times of an iteration without prompts, and of those after it that computed a prompt.
        decode_ms: Its real time.

    Returns:
        The same without the delay.
    """
    before, first, *others = times_ms
    return [decode_ms, first + before - decode_ms, *others]


def was_decode(ms: float, decode_ms: float) -> bool:
    """True if an iteration hardly took longer than one that computes no prompt."""
    return ms <= (1 + _DECODE_MARGIN) * decode_ms


def are_chunks(times_ms: Sequence[float], decode_ms: float) -> bool:
    """True if iterations computed all of a prompt, in equal chunks but for the last, and none before them.

    Args:
        times_ms: Times of the iteration before, and of those that should have computed the prompt.
        decode_ms: Time of an iteration without a prompt.
    """
    before, *chunks = times_ms
    if before > _CHUNK_SHARE_MIN * chunks[0] + decode_ms:
        return False
    usual_ms = statistics.median(chunks[:-1] or chunks)
    return all(ms >= _CHUNK_SHARE_MIN * usual_ms and ms > decode_ms for ms in chunks[:-1])


def fits_last(times_ms: Sequence[float], decode_ms: float, last_share: float) -> bool:
    """True if the last of several chunks took about its share of the time of the others, beyond a decode.

    Args:
        times_ms: Times of the chunks.
        decode_ms: Time of an iteration without a prompt.
        last_share: Tokens of the last chunk, as a share of those of another.
    """
    *others, last = (max(0.0, ms - decode_ms) for ms in times_ms)
    usual_ms = statistics.median(others)
    return last <= (last_share + _LAST_MARGIN) * usual_ms + _DECODE_MARGIN * decode_ms


def lone_prompt(
    times_ms: Sequence[float], decode_ms: float, *, async_scheduling: bool, last_share: float
) -> list[float] | None:
    """Return the times of the iterations that computed a prompt which came alone.

    Args:
        times_ms: Times of an iteration before, and of those that should have computed it; of an engine that
            schedules ahead, one more before.
        decode_ms: Time of an iteration without a prompt.
        async_scheduling: The engine schedules ahead.
        last_share: Tokens of the last iteration, as a share of those of the others.

    Returns:
        None if other iterations seem to have computed it, as with another token budget.
    """
    if async_scheduling:
        earlier, *times_ms = times_ms
        if not was_decode(earlier, decode_ms):
            return None
        times_ms = without_delay(times_ms, decode_ms)
    chunks = list(times_ms[1:])
    if not are_chunks(times_ms, decode_ms) or (
        len(chunks) > 1 and not fits_last(chunks, decode_ms, last_share)
    ):
        return None
    return chunks


def prompts_behind(
    times_ms: Sequence[float], decode_ms: float, *, async_scheduling: bool, iterations_later: int
) -> list[float] | None:
    """Return the time of the iteration that computed prompts sent behind a long one.

    Args:
        times_ms: Times of an iteration before, and of that one; of an engine that schedules ahead, one more
            before.
        decode_ms: Time of an iteration without a prompt.
        async_scheduling: The engine schedules ahead.
        iterations_later: Iterations from the one that ended the long prompt to that one.

    Returns:
        None if the long prompt was in the same iteration, since it was divided or late.
    """
    if iterations_later < 1:
        return None
    if async_scheduling and iterations_later > 1:
        return without_delay(times_ms[-2:], decode_ms)[1:]
    return [times_ms[-1]]

"""The pacer of one text: limits that hold for every stream, and bad input."""

import math
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from qlm.domain.errors import InvalidValueError
from qlm.pacer.core.graphemes import graphemes, is_open
from qlm.pacer.core.options import PacerOptions
from qlm.pacer.core.pacer import Pacer
from qlm.pacer.headers import headers
from scripts import pacer_vectors
from support.pacing import Released, paced

STREAMS = 10_000
OPTIONS = (
    PacerOptions(),
    PacerOptions(max_lag_ms=120),
    PacerOptions(rate=3.3, max_lag_ms=300),
    PacerOptions(rate=50, max_lag_ms=40),
)
PIECES = (*pacer_vectors.PIECES, "x" * 70)


def bursty(rng: random.Random) -> list[tuple[float, str]]:
    at_ms = 0.0
    pushes = []
    for _ in range(rng.randint(1, 12)):
        at_ms += rng.choice((0, 0, 3.7, 16, 33, 80, 210, 290, 700, 5000)) * rng.uniform(0.5, 1.5)
        pushes.append((at_ms, "".join(rng.choices(PIECES, k=rng.choice((1, 1, 2, 5, 40))))))
    return pushes


def longest_lag_ms(pushes: Sequence[tuple[float, str]], out: Sequence[Released]) -> float:
    """Return the longest time that a character waited."""
    ends, position = [], 0
    for at_ms, text in pushes:
        position += len(text)
        ends.append((position, at_ms))
    longest, position, number = 0.0, 0, 0
    for at_ms, text in out:
        while position >= ends[number][0]:
            number += 1
        longest = max(longest, at_ms - ends[number][1])  # of its characters, the first arrived first
        position += len(text)
    return longest


def test_10_000_bursty_streams_lose_and_reorder_nothing_and_stay_within_the_lag() -> None:
    for seed in range(STREAMS):
        pushes = bursty(random.Random(seed))
        options = OPTIONS[seed % len(OPTIONS)]
        pacer = Pacer(options)
        out = paced(pacer, pushes)
        assert pacer.done
        assert "".join(each.text for each in out) == "".join(text for _, text in pushes), seed
        assert longest_lag_ms(pushes, out) <= options.lag_ms + 1e-6, seed
        assert pacer.report().added_lag_ms <= options.lag_ms + 1e-6, seed
        first = graphemes(pushes[0][1])
        if len(first) > 1 or not is_open(first[0]):  # a single one that is known to go on waits
            assert out[0].at_ms == pushes[0][0], seed


def test_bursts_reach_the_reader_evenly() -> None:
    """Twenty bursts of ten words, 200 ms apart: gaps of 200 ms become gaps of less than 60 ms."""
    pushes = [(200.0 * number, " word" * 10) for number in range(20)]
    pacer = Pacer()
    times_ms = [each.at_ms for each in paced(pacer, pushes)]
    begun = [at_ms for at_ms in times_ms if 1000 <= at_ms <= 3800]
    gaps_ms = [later - at_ms for at_ms, later in pairwise(begun)]
    assert max(gaps_ms) < 60
    assert pacer.report().added_lag_ms < 300


def test_a_pause_does_not_slow_what_follows() -> None:
    pacer = Pacer()
    paced_before = [(20.0 * number, " word") for number in range(50)]
    out = paced(pacer, [*paced_before, (60_000.0, " after the pause")])
    assert [each.at_ms for each in out if each.text == " after"] == [60_000.0]


def test_the_committed_bursts_are_those_of_the_script() -> None:
    assert pacer_vectors.PATH.read_text("utf-8") == pacer_vectors.content()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"rate": 0}, "rate"),
        ({"rate": "fast"}, "rate"),
        ({"rate": True}, "rate"),
        ({"max_lag_ms": -1}, "max_lag_ms"),
        ({"max_lag_ms": math.inf}, "max_lag_ms"),
        ({"max_lag_ms": 10**400}, "max_lag_ms"),
        ({"graphemes_per_token": 0}, "graphemes_per_token"),
        ({"ttft_ms": math.nan}, "ttft_ms"),
        ({"reader_tokens_per_s": -4.8}, "reader_tokens_per_s"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValueError, match="expected a number") as caught:
        PacerOptions(**options)
    assert caught.value.field == field


def test_bad_input_loses_nothing() -> None:
    pacer = Pacer()
    pacer.push("kept", 0)
    with pytest.raises(InvalidValueError, match="text is None"):
        pacer.push(None, 0)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="now_ms is nan"):
        pacer.push("late", math.nan)
    pacer.end(1)
    with pytest.raises(InvalidValueError, match="none after the end"):
        pacer.push("late", 2)
    assert pacer.release(3) == "kept"
    assert pacer.done


def test_headers_ask_for_the_pace() -> None:
    assert headers(4.8) == {"x-slo-tokens-per-s": "4.8"}
    assert headers(5.0) == {"x-slo-tokens-per-s": "5"}
    for pace in (0, 0.009, 10_001, math.inf, math.nan):
        with pytest.raises(InvalidValueError, match=r"tokens_per_s is .*; expected .* from 0.01 to 10000"):
            headers(pace)

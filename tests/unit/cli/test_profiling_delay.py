"""Iterations of a real engine that schedules ahead, by the recorded arrivals of its tokens."""

import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from qlm.cli.profiling.timing import iterations_until, lone_prompt, was_decode, without_delay

CASES: Final[list[dict[str, Any]]] = orjson.loads(
    Path(__file__).with_name("arrivals_h100.json").read_bytes()
)["cases"]
"""Of vLLM 0.32 on an H100, as the file says."""

named = pytest.mark.parametrize(
    "case", CASES, ids=[f"{c['prompt_tokens']} beside {c['decodes']} x {c['context']}" for c in CASES]
)


def decode_ms(case: dict[str, Any]) -> float:
    arrivals_us: list[int] = case["tokens_us"]
    return statistics.median((after - before) / 1e3 for before, after in pairwise(arrivals_us))


def timed(case: dict[str, Any]) -> list[list[float]]:
    """Return the times of two iterations before each prompt, and of the one that should have computed it."""
    stream = [(us * 1000, n) for n, us in enumerate(case["tokens_us"], 1)]
    found = [iterations_until(stream, first_us * 1000, 1, 2) for _sent_us, first_us in case["prompts_us"]]
    return [each[0] for each in found if each is not None]


def spread(times: Sequence[float]) -> float:
    """Return the median distance from the median, as a share of it."""
    middle = statistics.median(times)
    return statistics.median(abs(each - middle) for each in times) / middle


@named
def test_the_iteration_before_a_prompt_and_the_prompt_have_the_right_time_together(
    case: dict[str, Any],
) -> None:
    alone = decode_ms(case)
    raw = [times[-1] for times in timed(case)]
    corrected = [without_delay(times[1:], alone) for times in timed(case)]
    assert len(corrected) == 6
    assert statistics.median(times[-1] for times in corrected) >= alone
    assert spread([times[-1] for times in corrected]) < 0.13
    assert sum(raw) < sum(times[-1] for times in corrected), "the token before was late"
    assert all(lone_prompt(times, alone, async_scheduling=True, last_share=1.0) for times in timed(case))


def test_without_the_correction_short_prompts_seem_to_take_less_than_no_prompt() -> None:
    (short,) = (case for case in CASES if (case["decodes"], case["prompt_tokens"]) == (1, 128))
    assert statistics.median(times[-1] for times in timed(short)) < decode_ms(short)


def test_times_of_prompts_alone_grow_with_their_tokens() -> None:
    alone = [case for case in CASES if case["decodes"] == 1]
    medians = [
        statistics.median(without_delay(times[1:], decode_ms(case))[-1] for times in timed(case))
        for case in alone
    ]
    assert medians == sorted(medians)
    assert medians[0] == pytest.approx(6.7, abs=0.1)
    assert medians[-1] == pytest.approx(94.7, abs=1)


def test_the_delay_belongs_to_the_first_of_several_chunks() -> None:
    """A prompt in three iterations of 40 ms, beside decodes of 10 ms; the first starts 5 ms late."""
    assert without_delay([15.0, 35.0, 40.0, 40.0], 10.0) == [10.0, 40.0, 40.0, 40.0]


def test_an_iteration_that_computed_a_part_of_a_prompt_is_no_decode() -> None:
    assert was_decode(13.0, 10.0)
    assert not was_decode(14.0, 10.0)


@pytest.mark.parametrize(
    ("times", "share", "found"),
    [
        ([10, 15, 35, 40, 40], 1.0, [40, 40, 40]),
        ([10, 15, 35, 40, 18], 0.2, [40, 40, 18]),
        ([10, 15, 35, 40, 40], 0.2, None),
        ([40, 40, 40], 0.9, None),
        ([10, 22, 12], 1.0, [24]),
    ],
    ids=["equal", "short last", "long last", "began before", "one"],
)
def test_a_prompt_in_other_iterations_than_expected_is_refused(
    times: list[float], share: float, found: list[float] | None
) -> None:
    assert lone_prompt(times, 10.0, async_scheduling=True, last_share=share) == found

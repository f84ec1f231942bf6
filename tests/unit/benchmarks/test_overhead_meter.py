"""The time that counts when an engine is to be kept full: from the first full batch to the last start."""

import pytest

from benchmarks.overhead.meter import Sample, filled
from benchmarks.overhead.work import PROMPT_TOKENS, draw


def sample(at_s: float, running: int, begun: int, output_tokens: int) -> Sample:
    return Sample(at_s, at_s / 2, running, 1000 + begun * PROMPT_TOKENS, 500 + output_tokens)


READINGS = [
    sample(0, 0, 0, 0), sample(1, 3, 3, 10), sample(2, 4, 4, 50), sample(3, 3, 5, 90), sample(4, 4, 7, 130),
    sample(5, 4, 8, 170), sample(6, 2, 8, 190),
]  # fmt: skip


def test_filling_and_draining_do_not_count() -> None:
    made = filled(READINGS, seqs_max=4, requests=8)
    assert (made.seconds, made.tokens_per_s, made.samples) == (2.0, 40.0, 3)
    assert made.tokens_per_engine_s == 80.0


def test_a_place_that_is_empty_while_work_waits_shows() -> None:
    made = filled(READINGS, seqs_max=4, requests=8)
    assert made.empty_mean == pytest.approx(1 / 3)
    assert made.empty_share == pytest.approx(1 / 3)


def test_a_batch_that_was_never_full_proves_nothing() -> None:
    with pytest.raises(ValueError, match="never full"):
        filled(READINGS, seqs_max=5, requests=8)


def test_both_arms_have_the_same_lengths_and_no_prompt_in_common() -> None:
    one, other = (draw(20, seed=3, arm=arm) for arm in ("direct", "servers"))
    assert one.tokens == other.tokens
    assert not set(one.prompts) & set(other.prompts)
    assert draw(20, seed=3, arm="direct") == one

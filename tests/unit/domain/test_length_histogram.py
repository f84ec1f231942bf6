"""Bins of output lengths: every length has one, and the bounds are those of the estimator."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.domain.length_histogram import LENGTH_BINS, LENGTH_EDGES, NO_LENGTHS, LengthHistogram, length_bin


@given(st.integers(1, LENGTH_EDGES[-1]))
def test_a_length_lies_in_its_bin(tokens: int) -> None:
    at = length_bin(tokens)
    assert LENGTH_EDGES[at] < tokens <= LENGTH_EDGES[at + 1]


def test_what_is_longer_than_all_bins_is_in_the_last() -> None:
    assert length_bin(10 * LENGTH_EDGES[-1]) == LENGTH_BINS - 1


def test_short_answers_are_counted_apart_token_by_token_and_long_ones_to_a_quarter_octave() -> None:
    assert [length_bin(tokens) for tokens in range(1, 9)] == list(range(8))
    assert all(high / low < 1.26 for low, high in pairwise(LENGTH_EDGES[8:]))


def test_a_histogram_of_other_bins_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"lengths\.cut_off is"):
        LengthHistogram(cut_off=(1, 2))
    assert (NO_LENGTHS.answers, NO_LENGTHS.tokens) == (0, 0)

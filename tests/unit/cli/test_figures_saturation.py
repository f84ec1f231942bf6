"""What a batch policy serves while its batch is full."""

import numpy as np
import pytest

from qlm.cli.figures.saturation import served_when_full
from qlm.domain.errors import InvalidValueError

S = 1_000_000_000


def test_neither_the_first_third_nor_the_tail_counts() -> None:
    # Four slots, four seconds each: one end per second, and a last answer that takes 100 s alone.
    ended_s = np.append(np.arange(4, 32), 131)
    first_token_s = np.append(np.repeat(1, 4), np.arange(4, 29))
    assert len(ended_s) == len(first_token_s)
    assert served_when_full(first_token_s * S, ended_s * S) == pytest.approx(1.0)
    assert len(ended_s) / ended_s.max() < 0.25


def test_a_batch_that_is_never_full_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="requests"):
        served_when_full(np.array([S, S, S]), np.array([2 * S, 3 * S, 4 * S]))

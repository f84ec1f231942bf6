"""Readers of many requests in columns, as hosts of batch policies advance them.

Each row is a `Timeline` (`qlm.domain.streaming.timeline`): the same staircase of lateness, for all
requests of a batch at once.
"""

from typing import Final

import numpy as np

from qlm.agents.batching.view import FIRST_TOKEN_ONLY, NO_READER, Floats, Ints

_LONG_S: Final = 1e12
"""In place of an infinite time, so that no difference is undefined."""

_FIRST_ROWS: Final = 64


class ReaderColumns:
    """One row per request; rows are numbered by the host. Times are seconds since its origin.

    Attributes:
        tokens: Tokens delivered.
        late_s: Lateness of the last token.
        late_sum_s: Sum of the lateness of all tokens.
    """

    def __init__(self) -> None:
        self.tokens: Ints = np.zeros(_FIRST_ROWS, np.int64)
        self.late_s: Floats = np.zeros(_FIRST_ROWS)
        self.late_sum_s: Floats = np.zeros(_FIRST_ROWS)
        self._arrival_s: Floats = np.zeros(_FIRST_ROWS)
        self._rate: Floats = np.zeros(_FIRST_ROWS)
        self._first_due_s: Floats = np.zeros(_FIRST_ROWS)
        self._token_s: Floats = np.zeros(_FIRST_ROWS)

    def begin(
        self, row: int, arrival_s: float, ttft_s: float, rate: float, *, seen: int, late_s: float
    ) -> None:
        """Begin a row: a reader of `rate` tokens per second who has `seen` tokens, the last `late_s` late."""
        if row >= len(self.tokens):
            self._extend(row + 1)
        self.tokens[row] = seen
        self.late_s[row] = late_s
        self.late_sum_s[row] = seen * late_s
        self._arrival_s[row] = arrival_s
        self._rate[row] = rate
        self._first_due_s[row] = arrival_s + min(ttft_s, _LONG_S)
        self._token_s[row] = _LONG_S if rate == FIRST_TOKEN_ONLY else 1 / rate

    def read_end_s(self, rows: Ints) -> Floats:
        """Return when each reader has read all that was delivered; the arrival before the first token.

        A request without a reader is read at once: its arrival. One whose objective has ended with its first
        token has no end: inf.
        """
        ends = self._due_s(rows) + self.late_s[rows]
        rates, begins = self._rate[rows], self._arrival_s[rows]
        ends[rates == FIRST_TOKEN_ONLY] = np.inf
        return np.where((self.tokens[rows] == 0) | (rates == NO_READER), begins, ends)

    def deliver(self, rows: Ints, at_s: float) -> None:
        """Deliver one token to each of these rows."""
        late_s = np.maximum(self.late_s[rows], at_s - self._due_s(rows))
        self.late_s[rows] = late_s
        self.late_sum_s[rows] += late_s
        self.tokens[rows] += 1

    def deliver_run(
        self, rows: Ints, tokens: int, first_s: float, step_s: float, growth_s: float = 0.0
    ) -> None:
        """Deliver tokens one by one to each of these rows, at the times of `Timeline.deliver_run`."""
        late_s = first_s - self._due_s(rows)
        floor_s = np.maximum(self.late_s[rows], late_s)
        slope_s, last = step_s - self._token_s[rows], tokens - 1
        end_s = late_s + _beyond_s(last, slope_s, growth_s)
        sums_s = tokens * floor_s
        rising = np.flatnonzero(end_s > floor_s)
        if len(rising):
            late, floor, slope = late_s[rising], floor_s[rising], slope_s[rising]
            within = 1 + _last_within(last, floor - late, slope, growth_s)
            after = _sums_s(tokens, late, slope, growth_s) - _sums_s(within, late, slope, growth_s)
            sums_s[rising] = within * floor + after
            floor_s[rising] = end_s[rising]
        self.late_s[rows] = floor_s
        self.late_sum_s[rows] += sums_s
        self.tokens[rows] += tokens

    def _due_s(self, rows: Ints) -> Floats:
        """Return when the next token of each row is due."""
        return np.asarray(self._first_due_s[rows] + self.tokens[rows] * self._token_s[rows])

    def _extend(self, rows: int) -> None:
        more = max(rows, 2 * len(self.tokens)) - len(self.tokens)
        self.tokens = np.concatenate((self.tokens, np.zeros(more, np.int64)))
        for name in ("late_s", "late_sum_s", "_arrival_s", "_rate", "_first_due_s", "_token_s"):
            setattr(self, name, np.concatenate((getattr(self, name), np.zeros(more))))


def _beyond_s(token: int | Ints, slope_s: Floats, growth_s: float) -> Floats:
    """Return by how much a token of a run is later than the first, against their due times."""
    return np.asarray(token * slope_s + token * (token - 1) / 2 * growth_s)


def _last_within(last: int, floor_s: Floats, slope_s: Floats, growth_s: float) -> Ints:
    """Return the last token of a run that is later than the first by at most `floor_s` (0 or more)."""
    low = np.zeros(len(floor_s), np.int64)
    high = np.full(len(floor_s), last)
    while np.any(low < high):
        middle = (low + high + 1) // 2
        within = _beyond_s(middle, slope_s, growth_s) <= floor_s
        low = np.where(within, middle, low)
        high = np.where(within, high, middle - 1)
    return low


def _sums_s(tokens: int | Ints, late_s: Floats, slope_s: Floats, growth_s: float) -> Floats:
    """Return the lateness of the first tokens of a run, added up."""
    pairs = tokens * (tokens - 1) / 2
    return np.asarray(tokens * late_s + pairs * slope_s + pairs * (tokens - 2) / 3 * growth_s)

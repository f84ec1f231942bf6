"""Lateness of a reader: a staircase that never falls, kept in constant memory.

Token k is due at e_k and delivered at t_k. The reader starts it at s_k = max(t_k, e_k, s_{k-1} + 1/pace). Its
lateness is

    L_k = s_k - e_k = max(0, max over j <= k of (t_j - e_j)).

Later speed cannot give a wait back, so the last value is the idle time of the user (smooth goodput, equation
6). The mean and the last value give the quality of experience of Andes (`experience`).
"""

import math
from typing import Final

from qlm.domain.streaming.reader import Reader

LATE_S: Final = 1e-6
"""Lateness up to which a token is in time, and growth of it up to which none stalls: less is rounding."""


class Timeline:
    """Deliveries of one answer, as its reader meets them. Times are seconds from arrival, and never fall.

    Attributes:
        reader: The reader.
        tokens: Tokens delivered.
        late_s: Lateness of the last token: the idle time of the user so far.
        first_wait_s: Lateness of the first token.
        late_sum_s: Sum of the lateness of all tokens.
        stalls: Deliveries after the first that the reader had to wait for.
    """

    __slots__ = ("first_wait_s", "late_s", "late_sum_s", "reader", "stalls", "tokens")

    def __init__(self, reader: Reader, *, seen: int = 0) -> None:
        """Begin before the first token, or after tokens that came in time (`seen`)."""
        self.reader = reader
        self.tokens = seen
        self.late_s = 0.0
        self.first_wait_s = 0.0
        self.late_sum_s = 0.0
        self.stalls = 0

    @property
    def mean_late_s(self) -> float:
        """Mean lateness of the tokens; 0 without any."""
        return self.late_sum_s / self.tokens if self.tokens else 0.0

    @property
    def in_time(self) -> bool:
        """True if no token so far was late, but for rounding."""
        return self.late_s <= LATE_S

    @property
    def stalled_s(self) -> float:
        """Idle time after the first token."""
        return self.late_s - self.first_wait_s

    @property
    def read_end_s(self) -> float:
        """End of reading of all delivered tokens, in seconds; 0 without any."""
        return self.reader.due_s(self.tokens) + self.late_s if self.tokens else 0.0

    def deliver(self, tokens: int, at_s: float) -> None:
        """Take tokens that arrive together."""
        if tokens > 0:
            # Of tokens at one time, the first is the latest.
            self._rise(at_s - self.reader.due_s(self.tokens))
            self.late_sum_s += tokens * self.late_s
            self.tokens += tokens

    def deliver_run(self, tokens: int, first_s: float, step_s: float, growth_s: float = 0.0) -> None:
        """Take tokens one by one: token k of the run comes at first + k step + k (k - 1) / 2 growth.

        Such are the iterations of an engine in which nothing changes but the contexts, which grow.

        Args:
            tokens: Their number.
            first_s: When the first comes.
            step_s: Time from the first to the second; 0 or more.
            growth_s: Growth of that time with each token; 0 or more.
        """
        if tokens < 1:
            return
        late_s = first_s - self.reader.due_s(self.tokens)
        self._rise(late_s)
        # t_k - e_k is convex in k, and so at its largest at an end: once above the start, it only rises.
        slope_s = step_s - 1 / self.reader.tokens_per_s
        last = tokens - 1
        within = _last_within(last, self.late_s - late_s, slope_s, growth_s) + 1
        self.late_sum_s += within * self.late_s + _sum(within, tokens, late_s, slope_s, growth_s)
        self.tokens += tokens
        if within < tokens:
            self._rise(late_s + _run_late_s(within, slope_s, growth_s))
            self.stalls += _rises(within + 1, last, slope_s, growth_s)
            self.late_s = late_s + _run_late_s(last, slope_s, growth_s)

    def _rise(self, late_s: float) -> None:
        if late_s <= self.late_s:
            return
        if not self.tokens:
            self.first_wait_s = late_s
        elif late_s > self.late_s + LATE_S:
            self.stalls += 1
        self.late_s = late_s


def _run_late_s(token: int, slope_s: float, growth_s: float) -> float:
    """Return by how much a token of a run is later than the first, against their due times."""
    return token * slope_s + token * (token - 1) / 2 * growth_s


def _last_within(last: int, floor_s: float, slope_s: float, growth_s: float) -> int:
    """Return the last token of a run that is later than the first by at most `floor_s` (0 or more)."""
    low, high = 0, last
    while low < high:
        middle = (low + high + 1) // 2
        if _run_late_s(middle, slope_s, growth_s) <= floor_s:
            low = middle
        else:
            high = middle - 1
    return low


def _rises(first: int, last: int, slope_s: float, growth_s: float) -> int:
    """Return how many tokens from `first` to `last` of a run are a stall later than the one before them.

    Token k is later than token k - 1 by slope + (k - 1) growth, which never falls.
    """
    if first > last or slope_s + (last - 1) * growth_s <= LATE_S:
        return 0
    if slope_s > LATE_S:
        return last - first + 1
    return last - max(first, math.floor((LATE_S - slope_s) / growth_s) + 2) + 1


def _sum(begin: int, end: int, late_s: float, slope_s: float, growth_s: float) -> float:
    """Return the lateness of the tokens from `begin` to before `end` of a run, added up."""

    def up_to(n: int) -> float:
        pairs = n * (n - 1) / 2
        return n * late_s + pairs * slope_s + pairs * (n - 2) / 3 * growth_s

    return up_to(end) - up_to(begin) if begin < end else 0.0

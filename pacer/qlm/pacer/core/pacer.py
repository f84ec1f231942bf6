"""Pacer of one streamed text. Its caller has the clock; times are milliseconds.

Each unit (`words`) has a time at which it is due: the graphemes before it, at the rate, after the unit before
it. So what is released by a time depends on the arrivals alone, not on how often the caller asks.
"""

import math
from collections import deque
from typing import Final, NamedTuple

from qlm.domain.errors import InvalidValueError
from qlm.domain.streaming.experience import qoe_star
from qlm.domain.streaming.timeline import Timeline
from qlm.pacer.core.arrivals import Arrivals
from qlm.pacer.core.graphemes import graphemes, is_open
from qlm.pacer.core.options import PacerOptions
from qlm.pacer.core.surrogates import ends_in_half, joined
from qlm.pacer.core.words import words

CATCH_UP: Final = 1.1
"""Release over arrival: at 1, the text left over by an uneven arrival would never be caught up with."""

WAIT_SHARE: Final = 1 / 3
"""Share of the largest lag that a word waits for its rest, or for the time of the word before it."""

WAIT_MAX_MS: Final = 100.0
"""The same without a largest lag."""


class Unit(NamedTuple):
    """Text that is shown whole.

    Attributes:
        text: The text.
        size: Its graphemes.
        arrival_ms: Arrival of its first character.
    """

    text: str
    size: int
    arrival_ms: float


class PacerReport(NamedTuple):
    """Experience of the reader of a paced text (`qlm.domain.streaming`, a grapheme for a token).

    Attributes:
        graphemes: Graphemes released.
        first_wait_ms: Lateness of the first.
        idle_ms: Idle time of the reader.
        stalls: Waits of the reader after the first grapheme.
        qoe_star: Quality of experience, QoE*, from 0 to 1.
        added_lag_ms: Longest that a character waited in the pacer.
    """

    graphemes: int
    first_wait_ms: float
    idle_ms: float
    stalls: int
    qoe_star: float
    added_lag_ms: float


class Pacer:
    """Pacer of one text.

    Attributes:
        options: The options.
        now_ms: Latest time that it was given.

    Args:
        options: The options.
        start_ms: When the request was sent, for the report. None: at the first text.
    """

    def __init__(self, options: PacerOptions | None = None, *, start_ms: float | None = None) -> None:
        self.options = options or PacerOptions()
        self._lag_ms = self.options.lag_ms
        self._wait_ms = self._lag_ms * WAIT_SHARE if self._lag_ms < math.inf else WAIT_MAX_MS
        self._fixed = self.options.fixed_per_ms
        self._arrivals = Arrivals(self._lag_ms)
        self._timeline = Timeline(self.options.reader)
        self._start_ms = start_ms
        self.now_ms = -math.inf
        self._queue: deque[Unit] = deque()
        self._tail: list[str] = []  # graphemes of a word that may go on
        self._tail_ms = 0.0
        self._ready: list[Unit] = []
        self._ended = self._through = False
        # The reader has still `_rest` graphemes of the last unit to take at `_anchor_ms`.
        self._rate = 0.0
        self._rest = 0.0
        self._anchor_ms = self._latest_ms = -math.inf
        self._added_lag_ms = 0.0

    @property
    def wake_at(self) -> float | None:
        """When the next text is due; None if nothing is pending."""
        if self._ready:
            return self.now_ms
        return self._due_ms()

    @property
    def done(self) -> bool:
        """True when the text has ended and all of it is released."""
        return self._ended and not (self._ready or self._queue or self._tail)

    def push(self, text: str, now_ms: float) -> None:
        """Take text that has arrived.

        Raises:
            InvalidValueError: It is no string, the text has ended, or the time is not finite.
        """
        if not isinstance(text, str):
            raise InvalidValueError("text", text, "a string")
        if self._ended:
            raise InvalidValueError("text", text, "none after the end")
        self._advance(now_ms)
        if not text:
            return
        now_ms = self.now_ms
        if self._start_ms is None:
            self._start_ms = now_ms
        pieces = graphemes(joined("".join(self._tail) + text))
        self._arrivals.add(len(pieces) - len(self._tail), now_ms)
        if not self._tail:
            self._tail_ms = now_ms
        complete, self._tail = words(pieces)
        for unit in complete:
            self._queue.append(Unit("".join(unit), len(unit), self._tail_ms))
            self._tail_ms = now_ms
        self._schedule()

    def close(self, now_ms: float) -> None:
        """End the last word: the next text begins another one."""
        self._advance(now_ms)
        self._close_tail()
        self._schedule()

    def end(self, now_ms: float) -> None:
        """End the text. What is pending stays paced; a second call does nothing."""
        self.close(now_ms)
        self._ended = True

    def flush(self, now_ms: float) -> None:
        """Make all that is pending due at once: after an abort, or when no one looks."""
        self._advance(now_ms)
        self._flush()

    def pass_through(self, on: bool, now_ms: float) -> None:
        """Begin or end to release text as it arrives: on a hidden page, or where motion is to be reduced."""
        self._advance(now_ms)
        self._through = on
        if on:
            self._flush()

    def release(self, now_ms: float) -> str:
        """Return the text that has become due since the last call."""
        return "".join(self.release_units(now_ms))

    def release_units(self, now_ms: float) -> list[str]:
        """Return the same as `release`, each unit apart."""
        self._advance(now_ms)
        ready, self._ready = self._ready, []
        if ready and self._start_ms is not None:
            self._added_lag_ms = max(self._added_lag_ms, self.now_ms - ready[0].arrival_ms)
            at_s = max(0.0, (self.now_ms - self._start_ms) / 1000)
            self._timeline.deliver(sum(unit.size for unit in ready), at_s)
        return [unit.text for unit in ready]

    def report(self) -> PacerReport:
        """Return the reader's experience of what was released so far."""
        lived = self._timeline
        return PacerReport(
            lived.tokens,
            lived.first_wait_s * 1000,
            lived.late_s * 1000,
            lived.stalls,
            qoe_star(lived),
            self._added_lag_ms,
        )

    def _advance(self, now_ms: float) -> None:
        """Move what is due to `_ready`. A clock that falls stands still."""
        if not math.isfinite(now_ms):
            raise InvalidValueError("now_ms", now_ms, "a finite time")
        self.now_ms = max(self.now_ms, now_ms)
        while (due_ms := self._due_ms()) is not None and due_ms <= self.now_ms:
            unit = self._queue.popleft() if self._queue else self._cut_tail()
            self._ready.append(unit)
            self._anchor_ms = self._latest_ms = due_ms
            self._rest = float(unit.size)

    def _due_ms(self) -> float | None:
        if self._queue:
            return min(self._paced_ms(), self._queue[0].arrival_ms + self._lag_ms)
        if not self._tail:
            return None
        last_ms = self._tail_ms + self._lag_ms
        if len(self._tail) == 1 and is_open(self._tail[0]):
            if ends_in_half(self._tail[0]):  # half a character is not text
                return None
            return last_ms if last_ms < math.inf else self._tail_ms + self._wait_ms
        started = self._latest_ms > -math.inf
        return min(max(self._paced_ms(), self._tail_ms + (self._wait_ms if started else 0.0)), last_ms)

    def _paced_ms(self) -> float:
        """Return when the rate allows the next unit."""
        if not self._rest:
            return self._anchor_ms
        paced_ms = self._anchor_ms + self._rest / self._rate if self._rate else math.inf
        if self._fixed is None:
            # A slow arrival is not made slower: after a while the next unit may come in any case.
            paced_ms = min(paced_ms, max(self._anchor_ms, self._latest_ms + self._wait_ms))
        return paced_ms

    def _schedule(self) -> None:
        """Choose the rate anew: that at which the text arrives, or more if the largest lag demands it."""
        now_ms = self.now_ms
        if self._rest:
            self._rest = max(0.0, self._rest - (now_ms - self._anchor_ms) * self._rate)
        self._anchor_ms = now_ms
        self._rate = self._fixed if self._fixed is not None else CATCH_UP * self._arrivals.per_ms
        if self._lag_ms < math.inf:
            self._rate = max(self._rate, self._needed(now_ms))
        if self._through:
            self._flush()

    def _needed(self, now_ms: float) -> float:
        """Return the least rate at which each pending unit is in time, evenly from now on."""
        needed, before = 0.0, self._rest
        for unit in self._queue:
            left_ms = unit.arrival_ms + self._lag_ms - now_ms
            if left_ms > 0:
                needed = max(needed, before / left_ms)
            before += unit.size
        return needed

    def _cut_tail(self) -> Unit:
        """Take what there is of the last word, without a grapheme that is known to be incomplete."""
        end = len(self._tail) - (len(self._tail) > 1 and is_open(self._tail[-1]))
        cut, self._tail = self._tail[:end], self._tail[end:]
        return Unit("".join(cut), len(cut), self._tail_ms)

    def _close_tail(self) -> None:
        if self._tail:
            self._queue.append(Unit("".join(self._tail), len(self._tail), self._tail_ms))
            self._tail = []

    def _flush(self) -> None:
        half = self._tail[-1:] if self._tail and ends_in_half(self._tail[-1]) and not self._ended else []
        del self._tail[len(self._tail) - len(half) :]
        self._close_tail()
        self._ready += self._queue
        self._queue.clear()
        self._rest = 0.0
        self._tail = half

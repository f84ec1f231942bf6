"""The protocol of one client's answer: output in, events for the client out. No I/O, no clock.

What a client is shown is always a prefix of one output log. Slices that overlap are compared and
trimmed; a gap is read from the store; a log that is shorter than, or differs from, what was shown
ends the session as `output_lost`. So no token is shown twice, skipped, or spliced in from another run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, assert_never

from qlm.domain.ids import TokenIds
from qlm.domain.outcome import Outcome
from qlm.domain.output import OutputSlice
from qlm.domain.request import RequestCard
from qlm.gateway.answer_text import AnswerText, finish_reason
from qlm.gateway.session_events import (
    Action,
    AskCancel,
    AskOutput,
    AskStop,
    ClientGone,
    Event,
    Heard,
    Read,
    ReadFailed,
    Resync,
    SendEvent,
    SendFinal,
    SendKeepAlive,
    Tick,
)

UNKNOWN_POLLS: Final = 2
"""A request that the store does not know is looked up so many times as often as a silent one, and ever so:
after the store was emptied it comes back at any moment, and nothing is announced before it is found."""


class Mode(Enum):
    """How the answer goes out."""

    STREAM = auto()
    """Piece by piece."""
    WHOLE = auto()
    """At its end."""
    BACKGROUND = auto()
    """To nobody; the session only watches for stop strings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Pauses of a session, in nanoseconds; see GatewayLimits for their meaning."""

    keepalive_ns: int
    poll_ns: int
    poll_max_ns: int
    grace_ns: int
    lost_after_ns: int
    unknown_after_ns: int


class Session:
    """One client's view of one request.

    Attributes:
        card: The request.
        over: Nothing more will come from this session.
        first_output_ns: When it first saw output.
        wake_ns: When it wants a Tick, at the latest.
    """

    def __init__(
        self, card: RequestCard, text: AnswerText, mode: Mode, timing: Timing, now_ns: int, shown: int = 0
    ) -> None:
        """Begin.

        Args:
            card: The request.
            text: The text of its answer, with no token fed yet.
            mode: How the answer goes out.
            timing: Pauses.
            now_ns: The present.
            shown: Output tokens that the client has been shown before (Last-Event-ID).
        """
        self.card = card
        self.over = False
        self.first_output_ns: int | None = None
        self._text = text
        self._mode = mode
        self._timing = timing
        self._shown = shown
        self._sent = shown
        self._ids: list[int] = []
        self._pieces: list[str] = []
        self._asked = False
        self._ask_again = False
        self._poll_pause_ns = timing.poll_ns
        self._poll_at_ns = now_ns + timing.poll_ns
        self._keepalive_at_ns = now_ns + timing.keepalive_ns
        self._gone_at_ns: int | None = None
        self._short_since_ns: int | None = None

    @property
    def wake_ns(self) -> int:
        """When it wants a Tick, at the latest."""
        wake = self._poll_at_ns
        if self._gone_at_ns is not None:
            return min(wake, self._gone_at_ns + self._timing.grace_ns)
        return min(wake, self._keepalive_at_ns) if self._mode is Mode.STREAM else wake

    @property
    def text(self) -> AnswerText:
        """The text of the answer so far."""
        return self._text

    def handle(self, event: Event) -> Sequence[Action]:
        """Take an event; return what is to be done, in order."""
        if self.over:
            return ()
        match event:
            case Heard(slice=heard, now_ns=now_ns):
                return self._take(heard, now_ns)
            case Read():
                return self._read(event)
            case ReadFailed(now_ns=now_ns):
                self._asked = False
                self._back_off(now_ns)
                return ()
            case Resync(now_ns=now_ns):
                self._poll_pause_ns = self._timing.poll_ns
                self._poll_at_ns = now_ns
                return ()
            case Tick(now_ns=now_ns):
                return self._tick(now_ns)
            case ClientGone(now_ns=now_ns):
                if self._gone_at_ns is None and self._mode is not Mode.BACKGROUND:
                    self._gone_at_ns = now_ns
                return self._tick(now_ns)
        assert_never(event)

    # --- output

    def _take(self, new: OutputSlice, now_ns: int) -> list[Action]:
        """Take a slice of the log, wherever it lies."""
        have = len(self._ids)
        if new.offset > have:
            return self._ask()
        if not self._agrees(new):
            return self._lost("the output log differs from what was shown", log_end=0)
        if new.outcome is not None and new.end < max(have, self._shown):
            return self._lost(f"it ended at token {new.end}, {max(have, self._shown)} were shown", new.end)
        fresh = new.token_ids[have - new.offset :]
        if fresh:
            self._poll_pause_ns = self._timing.poll_ns
            self._poll_at_ns = now_ns + self._poll_pause_ns
        actions = self._feed(fresh, now_ns)
        if new.outcome is not None and not self.over:
            actions.append(self._end(new.outcome, new.detail))
        return actions

    def _agrees(self, new: OutputSlice) -> bool:
        """Whether the part of a slice that we have already says the same."""
        have = len(self._ids)
        if new.offset == have:
            return True
        overlap = min(have, new.end) - new.offset
        return list(new.token_ids[:overlap]) == self._ids[new.offset : new.offset + overlap]

    def _feed(self, fresh: Sequence[int], now_ns: int) -> list[Action]:
        if not fresh:
            return []
        if self.first_output_ns is None:
            self.first_output_ns = now_ns
        # Up to what the client has seen, text is made but not sent: an event's text is what was released
        # since the event before, so it must begin exactly where the shown tokens end.
        replayed = max(0, min(len(fresh), self._shown - len(self._ids)))
        self._ids.extend(fresh)
        self._text.feed(fresh[:replayed])
        piece = self._text.feed(fresh[replayed:])
        actions: list[Action] = []
        if piece and self._mode is not Mode.BACKGROUND:
            actions += self._say(piece, now_ns)
        if self._text.met:
            actions += [self._end(Outcome.STOP, ""), AskStop()]
        return actions

    def _say(self, piece: str, now_ns: int) -> list[Action]:
        if self._mode is Mode.WHOLE or self._text.met:
            self._pieces.append(piece)
            return []
        if self._gone_at_ns is not None:
            return []
        self._keepalive_at_ns = now_ns + self._timing.keepalive_ns
        return [SendEvent(self._text.tokens, piece, self._unsent())]

    def _unsent(self) -> TokenIds:
        """Take the tokens of the answer that were not sent yet."""
        since, self._sent = self._sent, self._text.tokens
        return tuple(self._ids[since : self._sent])

    def _end(self, outcome: Outcome, detail: str) -> SendFinal:
        self.over = True
        reason = finish_reason(self._text, outcome) if outcome.ok else None
        rest = "".join((*self._pieces, self._text.finish()))
        return SendFinal(self._text.tokens, rest, reason, outcome, detail, self._unsent())

    def _lost(self, detail: str, log_end: int) -> list[Action]:
        final = self._end(Outcome.OUTPUT_LOST, detail)
        # Only what we read ourselves is proof: a client's claim must not end the request for others.
        return [final, AskCancel(Outcome.OUTPUT_LOST)] if len(self._ids) > log_end else [final]

    # --- asking

    def _ask(self) -> list[Action]:
        """Ask for the log from our last token on: if it is there, the log is not shorter than ours."""
        if self._asked:
            self._ask_again = True
            return []
        self._asked = True
        self._ask_again = False
        return [AskOutput(max(0, len(self._ids) - 1))]

    def _read(self, read: Read) -> list[Action]:
        self._asked = False
        if read.slice is None:
            self._poll_at_ns = read.now_ns + self._timing.poll_ns // UNKNOWN_POLLS
        else:
            self._back_off(read.now_ns)
        actions = self._judge(read)
        # A gap was heard of while the answer was on its way; the answer may be older than that.
        return actions + self._ask() if self._ask_again and not self.over else actions

    def _judge(self, read: Read) -> list[Action]:
        """Take what was read, unless the store has less than what was shown, or does not know the request."""
        seen, log, now_ns = max(len(self._ids), self._shown), read.slice, read.now_ns
        if log is not None and (log.outcome is not None or log.end >= seen or not self._agrees(log)):
            self._short_since_ns = None
            return self._take(log, now_ns)
        if not seen and not read.lost:
            self._short_since_ns = None  # it waits in the queue, as far as anybody knows
            return []
        # A store that was emptied fills again as agents register what they run: give them a while.
        if self._short_since_ns is None:
            self._short_since_ns = now_ns
        patience_ns = self._timing.lost_after_ns if seen else self._timing.unknown_after_ns
        if now_ns - self._short_since_ns < patience_ns:
            return []
        if log is None:
            told = "the request is not known any more"
            if not seen:
                told = "neither the queue nor the shared state knows the request any more"
            return self._lost(told, log_end=0)
        return self._lost(f"the output log has {log.end} tokens, {seen} were shown", log.end)

    def _back_off(self, now_ns: int) -> None:
        self._poll_at_ns = now_ns + self._poll_pause_ns
        self._poll_pause_ns = min(2 * self._poll_pause_ns, self._timing.poll_max_ns)

    # --- time

    def _tick(self, now_ns: int) -> list[Action]:
        if self._gone_at_ns is not None and now_ns >= self._gone_at_ns + self._timing.grace_ns:
            self.over = True
            return [] if self.card.detached else [AskCancel(Outcome.CANCELLED)]
        actions: list[Action] = []
        if self._mode is Mode.STREAM and self._gone_at_ns is None and now_ns >= self._keepalive_at_ns:
            self._keepalive_at_ns = now_ns + self._timing.keepalive_ns
            actions.append(SendKeepAlive())
        if now_ns >= self._poll_at_ns:
            self._poll_at_ns = now_ns + self._poll_pause_ns
            actions += self._ask()
        return actions

"""The protocol of one client's answer: output in, events for the client out. No I/O, no clock.

A client is always shown a prefix of one output log. Slices that overlap are compared and
trimmed; a gap is read from the store; a log that is shorter than, or differs from, what was shown
ends the session as `output_lost`. So no token is shown twice, skipped, or spliced in from another run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, assert_never

from qlm.domain.attainment import OutputTimes
from qlm.domain.ids import TokenIds
from qlm.domain.outcome import Outcome
from qlm.domain.output import OutputSlice
from qlm.domain.request import NS_PER_S, RequestMetadata
from qlm.gateway.core.answer_text import AnswerText, finish_reason
from qlm.gateway.core.logprobs.logged import logged_logprobs
from qlm.gateway.core.session_events import (
    Action,
    CancelRequest,
    ClientGone,
    Event,
    FetchFailed,
    FetchOutput,
    OutputAnnounced,
    OutputFetched,
    Resync,
    SendEvent,
    SendFinal,
    SendKeepAlive,
    StopGeneration,
    Tick,
)

UNKNOWN_POLLS: Final = 2
"""Reads per poll interval of a request that the store does not know, without back-off. After the store was
emptied the request may reappear at any time, and its output is announced only to known watchers."""


OTHER_BODY: Final = "its Idempotency-Key came with another body at the same time, which was kept instead"
"""Why the output of a request is not the one that the store has under its id."""


class Mode(Enum):
    """Delivery of the answer."""

    STREAM = auto()
    """Piece by piece, as it is generated."""
    WHOLE = auto()
    """Whole, at its end."""
    BACKGROUND = auto()
    """To no client; the session only matches stop strings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Intervals of a session, in nanoseconds; `LimitsConfig` describes them."""

    keepalive_ns: int
    poll_ns: int
    poll_max_ns: int
    grace_ns: int
    lost_after_ns: int
    unknown_after_ns: int


class Session:
    """One client's view of one request.

    Attributes:
        metadata: The request.
        over: The session has ended; it will request no more actions.
        times: When its output came.
    """

    def __init__(
        self,
        metadata: RequestMetadata,
        text: AnswerText,
        mode: Mode,
        timing: Timing,
        now_ns: int,
        shown: int = 0,
        *,
        replays: bool = False,
    ) -> None:
        """Begin with a new `text`; the client has been shown `shown` output tokens before (Last-Event-ID).

        With `replays`, the tokens of these come again with the first event, but not their text.
        """
        self.metadata = metadata
        self.over = False
        self.times = OutputTimes(metadata, seen=shown)
        self._text = text
        self._mode = mode
        self._timing = timing
        self._shown = shown
        self._timed = shown
        self._sent = 0 if replays else shown
        self._ids: list[int] = []
        self._logprobs = logged_logprobs(metadata)
        self._pieces: list[str] = []
        self._reading = False
        self._read_again = False
        self._poll_pause_ns = timing.poll_ns
        self._poll_at_ns = now_ns + timing.poll_ns
        self._keepalive_at_ns = now_ns + timing.keepalive_ns
        self._gone_at_ns: int | None = None
        self._short_since_ns: int | None = None

    @property
    def is_plain(self) -> bool:
        """True if a client waits for the whole answer."""
        return self._mode is Mode.WHOLE

    @property
    def wake_ns(self) -> int:
        """Time of its next Tick, at the latest."""
        wake = self._poll_at_ns
        if self._gone_at_ns is not None:
            return min(wake, self._gone_at_ns + self._timing.grace_ns)
        return min(wake, self._keepalive_at_ns) if self._mode is Mode.STREAM else wake

    @property
    def text(self) -> AnswerText:
        """The text of the answer so far."""
        return self._text

    def take_times(self, earlier: "Session", now_ns: int) -> None:
        """Take over when the output of the request came to an earlier session on it."""
        self.times, self._timed = earlier.times, earlier._timed
        self._time(now_ns)

    def handle(self, event: Event) -> Sequence[Action]:
        """Take an event; return the actions to perform, in order."""
        if self.over:
            return ()
        match event:
            case OutputAnnounced(slice=new, now_ns=now_ns):
                return self._take(new, now_ns)
            case OutputFetched():
                return self._read(event)
            case FetchFailed(now_ns=now_ns):
                self._reading = False
                self._back_off(now_ns)
                return ()
            case Resync(now_ns=now_ns):
                self._poll_pause_ns = self._timing.poll_ns
                self._poll_at_ns = now_ns
                return ()
            case Tick(now_ns=now_ns):
                return self._tick(now_ns)
            case ClientGone(now_ns=now_ns, for_good=for_good):
                if self._gone_at_ns is None and self._mode is not Mode.BACKGROUND:
                    self._gone_at_ns = now_ns - self._timing.grace_ns if for_good else now_ns
                return self._tick(now_ns)
        assert_never(event)

    # --- output

    def _take(self, new: OutputSlice, now_ns: int) -> list[Action]:
        """Take a slice of the log at any offset."""
        have = len(self._ids)
        if self._logprobs is not None:
            self._logprobs.put(new.extensions.logprobs_at)
        if new.offset > have:
            return self._start_read()
        if not self._agrees(new):
            return self._lost("the output log differs from the output shown", log_end=0)
        if new.outcome is not None and new.end < max(have, self._shown):
            return self._lost(f"it ended at token {new.end}, {max(have, self._shown)} were shown", new.end)
        added = new.token_ids[have - new.offset :]
        if added:
            self._poll_pause_ns = self._timing.poll_ns
            self._poll_at_ns = now_ns + self._poll_pause_ns
        actions = self._feed(added, now_ns, ends=new.outcome is not None and new.outcome.ok)
        if new.outcome is not None and not self.over:
            actions.append(self._end(new.outcome, new.detail, new.extensions.cached_tokens))
        return actions

    def _agrees(self, new: OutputSlice) -> bool:
        """Return whether a slice agrees with the tokens that we already have."""
        have = len(self._ids)
        if new.offset == have:
            return True
        overlap = min(have, new.end) - new.offset
        return list(new.token_ids[:overlap]) == self._ids[new.offset : new.offset + overlap]

    def _feed(self, added: Sequence[int], now_ns: int, *, ends: bool) -> list[Action]:
        if not added:
            return []
        # Text of tokens that the client has been shown is made but not sent: the text of the next event must
        # begin exactly where the shown tokens end.
        replayed = max(0, min(len(added), self._shown - len(self._ids)))
        self._ids.extend(added)
        self._time(now_ns)
        if replayed:
            self._text.feed(added[:replayed])
            added = added[replayed:]
        piece = self._text.feed(added)
        actions: list[Action] = []
        if piece and self._mode is not Mode.BACKGROUND:
            actions += self._send(piece, now_ns, ends=ends)
        if self._text.met:
            actions += [self._end(Outcome.STOP, ""), StopGeneration()]
        return actions

    def _time(self, now_ns: int) -> None:
        """Note that the tokens that are new have come."""
        self.times.take(len(self._ids) - self._timed, now_ns)
        self._timed = max(self._timed, len(self._ids))

    def _send(self, piece: str, now_ns: int, *, ends: bool) -> list[Action]:
        if self._mode is Mode.WHOLE or self._text.met:
            self._pieces.append(piece)
            return []
        if self._gone_at_ns is not None:
            return []
        if ends:  # the last event has it: one event and one write in place of two
            self._pieces.append(piece)
            return []
        self._keepalive_at_ns = now_ns + self._timing.keepalive_ns
        since, ids = self._sent, self._unsent()
        if self._logprobs is None:
            return [SendEvent(self._sent, piece, ids)]
        scores, prompt = self._logprobs.answer(since, self._sent), self._logprobs.prompt(since)
        return [SendEvent(self._sent, piece, ids, scores, prompt)]

    def _unsent(self) -> TokenIds:
        """Return the tokens of the answer that were not sent before, and mark them as sent."""
        since, self._sent = self._sent, self._text.tokens
        return tuple(self._ids[since : self._sent])

    def _end(self, outcome: Outcome, detail: str, cached_tokens: int | None = None) -> SendFinal:
        self.over = True
        text = self._text
        reason = finish_reason(text, outcome) if outcome.ok else None
        rest = "".join((*self._pieces, text.finish()))
        named = text.stop_reason if reason == "stop" else None
        since, ids = self._sent, self._unsent()
        final = SendFinal(text.tokens, rest, reason, outcome, detail, ids, named, cached_tokens)
        if self._logprobs is None:
            return final
        scores, prompt = self._logprobs.answer(since, self._sent), self._logprobs.prompt(since)
        return replace(final, logprobs=scores, prompt_logprobs=prompt)

    def _lost(self, detail: str, log_end: int) -> list[Action]:
        final = self._end(Outcome.OUTPUT_LOST, detail)
        # Only tokens that we read ourselves prove a loss: the claim of one client must not end the request of
        # others.
        return [final, CancelRequest(Outcome.OUTPUT_LOST, detail)] if len(self._ids) > log_end else [final]

    # --- reading the log

    def _start_read(self) -> list[Action]:
        """Read the log from our last token on: if it is there, the log is not shorter than ours."""
        if self._reading:
            self._read_again = True
            return []
        self._reading = True
        self._read_again = False
        return [FetchOutput(max(0, len(self._ids) - 1))]

    def _read(self, read: OutputFetched) -> list[Action]:
        self._reading = False
        if read.slice is None:
            self._poll_at_ns = read.now_ns + self._timing.poll_ns // UNKNOWN_POLLS
        elif read.slice.fingerprint != self.metadata.fingerprint:
            return [self._end(Outcome.OUTPUT_LOST, OTHER_BODY)]
        else:
            self._back_off(read.now_ns)
        actions = self._judge(read)
        # A gap was announced during the read; the result may be older than the gap.
        return actions + self._start_read() if self._read_again and not self.over else actions

    def _judge(self, read: OutputFetched) -> list[Action]:
        """Take the log unless it is shorter than the output shown, or the request is unknown."""
        seen, log, now_ns = max(len(self._ids), self._shown), read.slice, read.now_ns
        if log is not None and (log.outcome is not None or log.end >= seen or not self._agrees(log)):
            self._short_since_ns = None
            return self._take(log, now_ns)
        if not seen and not read.lost:
            self._short_since_ns = None  # presumably it waits in the queue
            return []
        # A store that was emptied is filled again as agents register what they run: give them time.
        if self._short_since_ns is None:
            self._short_since_ns = now_ns
        patience_ns = self._timing.lost_after_ns if seen else self._timing.unknown_after_ns
        if now_ns - self._short_since_ns < patience_ns:
            return []
        if log is None:
            detail = "the shared state no longer knows the request"
            if not seen:
                detail = "neither the queue nor the shared state knows the request any more"
            return self._lost(detail, log_end=0)
        return self._lost(f"the output log has {log.end} tokens, {seen} were shown", log.end)

    def _back_off(self, now_ns: int) -> None:
        self._poll_at_ns = now_ns + self._poll_pause_ns
        self._poll_pause_ns = min(2 * self._poll_pause_ns, self._timing.poll_max_ns)

    def _gone(self) -> str:
        """Return why a request is cancelled whose client has left."""
        grace_s = self._timing.grace_ns / NS_PER_S
        if not grace_s:
            return "its client disconnected"
        return f"its client disconnected, and no client resumed it within {grace_s:g} s"

    # --- time

    def _tick(self, now_ns: int) -> list[Action]:
        if self._gone_at_ns is not None and now_ns >= self._gone_at_ns + self._timing.grace_ns:
            self.over = True
            return [] if self.metadata.detached else [CancelRequest(Outcome.CANCELLED, self._gone())]
        actions: list[Action] = []
        if self._mode is Mode.STREAM and self._gone_at_ns is None and now_ns >= self._keepalive_at_ns:
            self._keepalive_at_ns = now_ns + self._timing.keepalive_ns
            actions.append(SendKeepAlive())
        if now_ns >= self._poll_at_ns:
            self._poll_at_ns = now_ns + self._poll_pause_ns
            actions += self._start_read()
        return actions

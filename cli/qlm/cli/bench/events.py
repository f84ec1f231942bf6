"""Server-sent events of an answer, and the tokens that each of them brought. No input or output here."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import orjson

from qlm.cli.bench.record import TOKENS_MAX, Chunk, spread

USAGE: Final = "usage of each event"
IDS: Final = "token ids of each event"
PLACES: Final = "id lines of the events"
SPREAD: Final = "usage of the whole answer, spread evenly over the events with text"
EVENTS: Final = "one token per event with text"

_SEVERAL: Final = "an answer of several choices: one is measured"

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")

_PLACE_DIGITS_MAX: Final = 18
"""Longest id line that may be a count of tokens."""


class Event(NamedTuple):
    """A server-sent event: its fields `event`, `id` and `data`."""

    kind: str
    place: str
    data: str


class EventParser:
    """Incremental parser of a stream of events; comments are dropped."""

    def __init__(self) -> None:
        self._rest = b""
        self._cut = False
        self._fields: dict[str, list[str]] = {}

    def feed(self, data: bytes) -> Iterator[Event]:
        """Take bytes, and yield the events that they complete."""
        if not data:
            return
        # A line ends with its CR: the LF of a CRLF may come with the next bytes, or never.
        text = data.removeprefix(b"\n") if self._cut else data
        self._cut = data.endswith(b"\r")
        *lines, self._rest = _LINE_END.split(self._rest + text)
        for raw in lines:
            line = raw.decode("utf-8", "replace")
            if line:
                name, _, value = line.partition(":")
                self._fields.setdefault(name, []).append(value.removeprefix(" "))
                continue
            fields, self._fields = self._fields, {}
            if "data" in fields:
                kind, place = (fields.get(name, [""])[-1] for name in ("event", "id"))
                yield Event(kind, place, "\n".join(fields["data"]))


class Piece(NamedTuple):
    """An event with a choice.

    Attributes:
        at_s: Arrival, seconds from the start of the run.
        text: Whether it has text.
        so_far: Output tokens of the answer so far, by its usage; None without.
        ids: Number of its token ids; None without.
        place: Output tokens so far, by its id line; None without.
    """

    at_s: float
    text: bool
    so_far: int | None = None
    ids: int | None = None
    place: int | None = None


class Answer:
    """An answer as its events come.

    Attributes:
        pieces: Events with a choice.
        finished: Whether the server said that the answer is complete.
        error: Message of an error event.
        prompt_tokens: By the usage.
        output_tokens: By the usage at the end; None without.
    """

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.finished = False
        self.error: str | None = None
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None

    def take(self, event: Event, at_s: float) -> None:
        """Take an event that arrived at a time."""
        if event.data == "[DONE]":
            self.finished = True
            return
        try:
            data = orjson.loads(event.data)
        except orjson.JSONDecodeError:
            self.error = "an event that is not JSON"
            return
        if not isinstance(data, dict):
            return
        if event.kind == "error" or data.get("error"):
            self.error = message_of(data)
            return
        try:
            self._read(data, at_s, event.place)
        except (AttributeError, LookupError, TypeError):
            self.error = "an event that is no part of a completion"

    def _read(self, data: dict[str, Any], at_s: float, place: str) -> None:
        usage = data.get("usage") or {}
        self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
        so_far = _count(usage.get("completion_tokens"))
        self.output_tokens = self.output_tokens if so_far is None else so_far
        for choice in data.get("choices") or ():
            if choice.get("index"):
                self.error = _SEVERAL
                return
            self.finished = self.finished or choice.get("finish_reason") is not None
            self.pieces.append(_piece(choice, at_s, so_far, place))

    def chunks(self) -> tuple[tuple[Chunk, ...], str]:
        """Return the chunks with their tokens, and how these were counted.

        The first way that applies to the whole answer: usage of each event (`continuous_usage_stats`), token
        ids, id lines (QLM's count the tokens so far), usage at the end, events.
        """
        pieces = self.pieces
        times = [each.at_s for each in pieces]
        if self._usage_grows():
            return _steps(times, [each.so_far or 0 for each in pieces]), USAGE
        if any(each.ids for each in pieces) and all(each.ids is not None for each in pieces if each.text):
            return tuple(Chunk(each.at_s, each.ids or 0) for each in pieces), IDS
        places = [each.place for each in pieces]
        if self.output_tokens is not None and places and places[-1] == self.output_tokens:
            known = [each for each in places if each is not None]
            if len(known) == len(places) and known == sorted(known):
                return _steps(times, known), PLACES
        return self._by_text(times)

    def _usage_grows(self) -> bool:
        """Return whether the usage of the events leads up to that of the whole answer."""
        pieces, total = self.pieces, self.output_tokens
        if not pieces or any(each.so_far is None for each in pieces) or pieces[-1].so_far != total:
            return False
        return bool(total) or not any(each.text for each in pieces)

    def _by_text(self, times: Sequence[float]) -> tuple[tuple[Chunk, ...], str]:
        rows = [row for row, each in enumerate(self.pieces) if each.text]
        if self.output_tokens is None or (rows and not self.output_tokens):
            number, how = len(rows), EVENTS
        else:
            number, how = self.output_tokens, EVENTS if self.output_tokens == len(rows) else SPREAD
        rows = rows or list(range(len(times)))
        counts = dict(zip(rows, spread(number, [times[row] for row in rows]), strict=True))
        return tuple(counts.get(row, Chunk(at_s, 0)) for row, at_s in enumerate(times)), how


def message_of(data: Any) -> str:
    """Return the message of an error of an OpenAI-compatible server."""
    error = data.get("error", data) if isinstance(data, dict) else data
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or "an error without a message")


def _count(value: Any, known: int | None = None) -> int | None:
    """Return a count of tokens, or the one that is known where there is none.

    Raises:
        TypeError: It is no count.
    """
    if value is None:
        return known
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= TOKENS_MAX:
        raise TypeError(value)
    return value


def _piece(choice: dict[str, Any], at_s: float, so_far: int | None, place: str) -> Piece:
    delta = choice.get("delta") or choice
    text = any(delta.get(name) for name in ("text", "content", "reasoning_content", "reasoning"))
    ids = choice.get("token_ids")
    counts = place.isdecimal() and len(place) <= _PLACE_DIGITS_MAX
    return Piece(at_s, text, so_far, None if ids is None else len(ids), int(place) if counts else None)


def _steps(times: Sequence[float], so_far: Sequence[int]) -> tuple[Chunk, ...]:
    before = [0, *so_far[:-1]]
    return tuple(
        Chunk(at_s, max(0, now - former)) for at_s, now, former in zip(times, so_far, before, strict=True)
    )

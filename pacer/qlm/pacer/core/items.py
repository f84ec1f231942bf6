"""Pacing of a stream of items, such as chunks of an API, of which only some carry text.

Text is cut anew; what carries none passes in its place, after all text before it, and ends a word. An item
with empty text ends none: it follows the word that it came in.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from qlm.domain.errors import InvalidValueError
from qlm.pacer.core.pacer import Pacer
from qlm.pacer.core.surrogates import ends_in_half, joined

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shape(Generic[T]):
    """Way to read and write the text of an item.

    Attributes:
        text_of: Text of an item; None if it has none. With empty text, too, it passes as it is.
        with_text: Item like another one, with another text.
        key_of: Which text an item belongs to: words never span two.
    """

    text_of: Callable[[T], str | None]
    with_text: Callable[[T, str], T]
    key_of: Callable[[T], Hashable] = lambda _: None


TEXT: Shape[str] = Shape(lambda text: text, lambda _, text: text)
"""Items that are the text."""


@dataclass(slots=True)
class _Run(Generic[T]):
    """Text of one key; places are characters from the begin of all text.

    Attributes:
        key: The key.
        item: Its last item with text.
        end: Its end.
        blanks: Items with empty text that have not passed, and their places.
    """

    key: Hashable
    item: T
    end: int
    blanks: deque[tuple[int, T]] = field(default_factory=deque)


class ItemPacer(Generic[T]):
    """Pacer of items, in their order. Its caller has the clock, as with `Pacer`."""

    def __init__(self, pacer: Pacer, shape: Shape[T]) -> None:
        self.pacer = pacer
        self._shape = shape
        self._order: deque[_Run[T] | T] = deque()
        self._pushed = self._released = 0
        # First halves of characters, by key: the other half may come after an item without text.
        self._halves: dict[Hashable, tuple[T, str]] = {}

    @property
    def wake_at(self) -> float | None:
        """When the next item is due; None if nothing is pending."""
        if self._order and not isinstance(self._order[0], _Run):
            return self.pacer.now_ms
        return self.pacer.wake_at

    @property
    def done(self) -> bool:
        """True when the stream has ended and all of it is released."""
        return self.pacer.done and not self._order

    def push(self, item: T, now_ms: float) -> None:
        """Take an item that has arrived."""
        text = self._shape.text_of(item)
        if text is None:
            self.pacer.close(now_ms)
            self._order.append(item)
        elif text == "":
            self._push_blank(item, now_ms)
        else:
            self._push_text(item, text, now_ms)

    def _push_text(self, item: T, text: str, now_ms: float) -> None:
        if not isinstance(text, str):  # else half a character before it would make it one
            raise InvalidValueError("text", text, "a string")
        key = self._shape.key_of(item)
        whole = joined(self._halves.pop(key, (item, ""))[1] + text)
        if ends_in_half(whole):
            self._halves[key] = (item, whole[-1])
            whole = whole[:-1]
        self._push_whole(key, item, whole, now_ms)

    def _push_whole(self, key: Hashable, item: T, text: str, now_ms: float) -> None:
        self.pacer.push("", now_ms)  # half a character is no arrival, but has a time
        if not text:
            return
        run = self._order[-1] if self._order else None
        if not isinstance(run, _Run) or run.key != key:
            self.pacer.close(now_ms)
            run = _Run(key, item, self._pushed)
            self._order.append(run)
        self.pacer.push(text, now_ms)
        self._pushed += len(text)
        run.item, run.end = item, self._pushed

    def _push_blank(self, item: T, now_ms: float) -> None:
        self.pacer.push("", now_ms)  # it is no arrival, but has a time
        run = self._order[-1] if self._order else None
        if isinstance(run, _Run):
            run.blanks.append((self._pushed, item))
        else:
            self._order.append(item)

    def end(self, now_ms: float) -> None:
        """End the stream. What is pending stays paced."""
        for key, (item, half) in self._halves.items():
            self._push_whole(key, item, half, now_ms)
        self._halves.clear()
        self.pacer.end(now_ms)

    def flush(self, now_ms: float) -> None:
        """Make all that is pending due at once."""
        self.pacer.flush(now_ms)

    def release(self, now_ms: float) -> list[T]:
        """Return the items that are due; those without text as soon as the text before them is out."""
        units = iter(self.pacer.release_units(now_ms))
        items: list[T] = []
        while self._order:
            first = self._order[0]
            if not isinstance(first, _Run):
                items.append(first)
            else:
                items += self._released_of(first, units)
                if self._released < first.end:
                    break
            self._order.popleft()
        return items

    def _released_of(self, run: _Run[T], units: Iterator[str]) -> Iterator[T]:
        """Yield the text of a run that is out, each item with empty text after the unit that it came in."""
        while run.blanks:
            place, blank = run.blanks[0]
            yield from self._text_until(place, run, units)
            if self._released < place:
                return
            run.blanks.popleft()
            yield blank
        yield from self._text_until(run.end, run, units)

    def _text_until(self, place: int, run: _Run[T], units: Iterator[str]) -> Iterator[T]:
        text = ""
        while self._released < place and (unit := next(units, None)) is not None:
            text += unit
            self._released += len(unit)
        if text:
            yield self._shape.with_text(run.item, text)

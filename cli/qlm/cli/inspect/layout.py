"""Tables as lines of text: nothing in them is ever cut.

A table that is too wide for the terminal wraps its sentences, then leaves out columns and says which, and at
last becomes a block of lines for each row. Without a width it is tab-separated, for other programs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment

UNBOUNDED: Final = 1_000_000
"""Width of a console that is no terminal: tables on it are tab-separated."""

GAP: Final = "  "
SENTENCE_MIN: Final = 16
"""Text of at most this width is never wrapped."""

COLUMNS_LEFT_MIN: Final = 4
"""A table of fewer columns than this is shown as blocks, unless it never had more."""

EMPTY: Final = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, the text of each row, and whether that is aligned to the right."""

    name: str
    cells: tuple[str, ...]
    right: bool

    @property
    def width(self) -> int:
        """Width without wrapping."""
        return max(map(cell_len, (self.name, *self.cells)))

    @property
    def width_min(self) -> int:
        """Least width: that of its longest word, if it is a column of sentences."""
        if self.width <= SENTENCE_MIN:
            return self.width
        words = (word for text in (self.name, *self.cells) for word in text.split())
        return max(SENTENCE_MIN, *map(cell_len, words))


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text.

    Attributes:
        title: Line above it; none if empty.
        columns: Its columns, the most important one first.
        spare: Names of the columns that are left out first, in this order; then the last ones go.
        notes: Lines below it.
    """

    title: str
    columns: tuple[Column, ...]
    spare: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return len(self.columns[0].cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Write it for the width of a console; print it with `crop=False`, or long words are cut."""
        for line in lines(self, options.max_width):
            yield Segment(line)
            yield Segment.line()


def lines(table: Table, width: int) -> Iterator[str]:
    """Yield the lines of a table in at most `width` columns, a longer single word apart."""
    if width >= UNBOUNDED:
        yield from _tab_separated(table)
        return
    if table.title:
        yield from wrapped(table.title, width)
    kept = _that_fit(table, width)
    if kept is None:
        yield from _blocks(table, width)
    else:
        yield from _rows(kept, _widths(kept, width))
        if left_out := [each.name for each in table.columns if each not in kept]:
            yield f"(no room in {width} columns for: {', '.join(left_out)}; a pipe or --json has all)"
    yield from table.notes
    yield ""


def printable(value: object) -> str:
    """Return the text of a value, with control characters escaped, so that it stays in its cell."""
    text = EMPTY if value is None else str(value)
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text
    )


def _tab_separated(table: Table) -> Iterator[str]:
    if table.title:
        yield f"# {table.title}"
    yield "\t".join(each.name for each in table.columns)
    for row in zip(*(each.cells for each in table.columns), strict=True):
        yield "\t".join(row)
    yield from (f"# {note}" for note in table.notes)


def _that_fit(table: Table, width: int) -> list[Column] | None:
    """Return the columns for which there is room; None if too few are left."""
    kept = list(table.columns)
    names = [
        *table.spare,
        *(each.name for each in reversed(table.columns[1:]) if each.name not in table.spare),
    ]
    least = min(COLUMNS_LEFT_MIN, len(kept))
    for name in names:
        if _span(each.width_min for each in kept) <= width:
            return kept
        kept = [each for each in kept if each.name != name]
        if len(kept) < least:
            return None
    return kept if _span(each.width_min for each in kept) <= width else None


def _span(widths: Iterator[int]) -> int:
    each = list(widths)
    return sum(each) + len(GAP) * (len(each) - 1)


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    """Give each column its least width, and what is left to the sentences, the first ones first."""
    given = [each.width_min for each in columns]
    left = width - _span(iter(given))
    for at, column in enumerate(columns):
        more = min(left, column.width - given[at])
        given[at] += more
        left -= more
    return given


def _rows(columns: Sequence[Column], widths: Sequence[int]) -> Iterator[str]:
    heads = [each.name for each in columns]
    yield from _row(heads, columns, widths)
    yield "─" * _span(iter(widths))
    for cells in zip(*(each.cells for each in columns), strict=True):
        yield from _row(cells, columns, widths)


def _row(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of one row: as many as its longest sentence needs."""
    parts_of = [wrapped(text, width) for text, width in zip(cells, widths, strict=True)]
    for number in range(max(map(len, parts_of))):
        parts = [each[number] if number < len(each) else "" for each in parts_of]
        padded = (
            _padded(text, width, column.right)
            for text, width, column in zip(parts, widths, columns, strict=True)
        )
        yield GAP.join(padded).rstrip()


def _padded(text: str, width: int, right: bool) -> str:
    blank = " " * (width - cell_len(text))
    return blank + text if right else text + blank


def wrapped(text: str, width: int) -> list[str]:
    """Break a text at blanks; a word that is longer than the width stays whole."""
    if cell_len(text) <= width:
        return [text]
    done: list[str] = []
    for word in text.split():
        if done and cell_len(done[-1]) + 1 + cell_len(word) <= width:
            done[-1] += f" {word}"
        else:
            done.append(word)
    return done


def _blocks(table: Table, width: int) -> Iterator[str]:
    label = max(cell_len(each.name) for each in table.columns)
    room = max(SENTENCE_MIN, width - label - len(GAP))
    for number in range(table.row_count):
        if number:
            yield ""
        for column in table.columns:
            first, *others = wrapped(column.cells[number], room)
            yield f"{_padded(column.name, label, right=False)}{GAP}{first}".rstrip()
            yield from (" " * (label + len(GAP)) + each for each in others)

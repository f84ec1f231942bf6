"""A view of tables that are drawn again and again: page, order and filter, changed by keys."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from qlm.cli.inspect.layout import EMPTY, Column, Table, lines

KEYS: Final = "space/b: page  s: sort  r: reverse  /: filter  q: quit"

_NUMBER: Final = re.compile(r"(?:in )?(-?\d+(?:\.\d+)?) ?(s|min|h|d|%)?\b")
_SECONDS: Final[Mapping[str | None, float]] = {"min": 60.0, "h": 3600.0, "d": 86_400.0}
_FORWARD: Final = (" ", "f", "j", "\x1b[6~", "\x1b[B")
_BACK: Final = ("b", "k", "\x1b[5~", "\x1b[A")
_ENTER: Final = ("\r", "\n")
_ERASE: Final = ("\x7f", "\b")


@dataclass(frozen=True, slots=True)
class View:
    """What is shown of some tables.

    Attributes:
        page: Number of the page, from 0.
        sort: Heading of the column by which rows are ordered; None for the order of the data.
        descending: The largest value comes first.
        wanted: Text that a row must contain, in any case; empty for all rows.
        types: Keys are added to `wanted`.
        ended: The reader has asked for the end.
    """

    page: int = 0
    sort: str | None = None
    descending: bool = False
    wanted: str = ""
    types: bool = False
    ended: bool = False

    def pressed(self, key: str, headings: Sequence[str]) -> "View":
        """Return the view after a key.

        Args:
            key: The key, as a terminal sends it.
            headings: Headings of all columns by which rows may be ordered.
        """
        if self.types:
            return self._typed(key)
        if key in _FORWARD:
            return replace(self, page=self.page + 1)
        if key in _BACK:
            return replace(self, page=max(0, self.page - 1))
        if key == "s":
            orders = [None, *dict.fromkeys(headings)]
            at = orders.index(self.sort) if self.sort in orders else 0
            return replace(self, page=0, sort=orders[(at + 1) % len(orders)])
        if key == "r":
            return replace(self, page=0, descending=not self.descending)
        if key == "/":
            return replace(self, page=0, wanted="", types=True)
        return replace(self, ended=True) if key in ("q", "\x03", "\x04") else self

    def _typed(self, key: str) -> "View":
        if key in _ENTER:
            return replace(self, types=False)
        if key == "\x1b":
            return replace(self, types=False, wanted="")
        if key in _ERASE:
            return replace(self, wanted=self.wanted[:-1])
        return replace(self, page=0, wanted=self.wanted + key) if key.isprintable() else self

    def arranged(self, table: Table) -> Table:
        """Return a table with the rows that are wanted, in the order that is asked for."""
        rows = list(zip(*(each.cells for each in table.columns), strict=True))
        rows = [row for row in rows if any(self.wanted.casefold() in cell.casefold() for cell in row)]
        names = [each.name for each in table.columns]
        if self.sort in names:
            at = names.index(self.sort)
            known = [row for row in rows if row[at] != EMPTY]
            known.sort(key=lambda row: order(row[at]), reverse=self.descending)
            rows = known + [row for row in rows if row[at] == EMPTY]
        cells = zip(*rows, strict=True) if rows else [()] * len(names)
        columns = tuple(
            Column(column.name, tuple(column_cells), column.right)
            for column, column_cells in zip(table.columns, cells, strict=True)
        )
        return replace(table, columns=columns)

    def drawn(
        self, tables: Sequence[Table], width: int, height: int, wrong: str = ""
    ) -> tuple["View", list[str]]:
        """Lay out one page.

        Args:
            tables: The tables.
            width: Columns of the terminal.
            height: Its rows; the last one says where one is, and which keys there are.
            wrong: Why the tables are not of now; shown in place of the keys.

        Returns:
            The view, on the last page if it was behind that, and the lines of the page.
        """
        everything = [line for table in tables for line in lines(self.arranged(table), width)]
        rows = max(1, height - 1)
        pages = max(1, -(-len(everything) // rows))
        page = min(self.page, pages - 1)
        shown = everything[page * rows : (page + 1) * rows]
        shown += [""] * (rows - len(shown))
        return replace(self, page=page), [*shown, (wrong or self._status(page, pages))[:width]]

    def _status(self, page: int, pages: int) -> str:
        if self.types:
            return f"filter: {self.wanted}_  (enter: keep, escape: none)"
        parts = [f"page {page + 1} of {pages}"]
        if self.sort is not None:
            parts.append(f"by {self.sort}{', largest first' if self.descending else ''}")
        if self.wanted:
            parts.append(f"with {self.wanted!r}")
        return f"{'  '.join(parts)}  |  {KEYS}"


def order(cell: str) -> tuple[float, str]:
    """Return the key by which cells are ordered: times and numbers by value, before words."""
    found = _NUMBER.match(cell)
    value = float("inf") if found is None else float(found[1]) * _SECONDS.get(found[2], 1.0)
    return value, cell

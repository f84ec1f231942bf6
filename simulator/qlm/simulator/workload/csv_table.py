"""Strict, fast reader of columns of comma-separated files, with the line of each row."""

import csv
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.simulator.scenario import IntArray
from qlm.simulator.workload.cells import BadCellError

_COMPRESSED: Final = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
}
"""First bytes of compressed files, with the program that writes them."""

_CHUNK_ROWS: Final = 1000
"""Rows kept as text at a time; few, for the processor's cache (1000 are twice as fast as 100 000)."""

Convert = Callable[[Sequence[str]], Any]
"""Converts the cells of a column to an array or a list of text."""


@dataclass(frozen=True, slots=True)
class Column:
    """Column to read.

    Attributes:
        name: Name in the header.
        convert: Converts its cells.
        required: A file without it is refused.
    """

    name: str
    convert: Convert
    required: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of a file by name, and the line of each row, from 1."""

    path: Path
    lines: IntArray
    columns: dict[str, Any]

    def refuse(self, row: int, column: str, value: object, expected: str) -> InvalidValueError:
        """Build the error for a value of a row."""
        return InvalidValueError(f"{self.path}:{self.lines[row]}: {column}", value, expected)


def read_table(path: Path, wanted: Sequence[Column]) -> Table:
    """Read columns of a file with a header line.

    Raises:
        InvalidValueError: The file cannot be read, or its header or a cell is not as expected; names
            file, line and column.
    """
    with open_text(path) as file:
        try:
            return _read(path, file, wanted)
        except UnicodeDecodeError:
            raise not_utf8(path) from None


def open_text(path: Path) -> TextIO:
    """Open a text file.

    Raises:
        InvalidValueError: It cannot be opened, or is compressed.
    """
    try:
        _refuse_compressed(path)
        return path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        problem = (error.strerror or "unreadable").lower()
        raise InvalidValueError(str(path), problem, "a file that can be read") from None


def _refuse_compressed(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(8)
    for magic, program in _COMPRESSED.items():
        if start.startswith(magic):
            raise InvalidValueError(str(path), f"compressed ({program})", "plain text: unpack it first")


def not_utf8(path: Path) -> InvalidValueError:
    """Build the error that names the first line of a file which is not UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                wrong = line[error.start : error.start + 4]
                return InvalidValueError(f"{path}:{number}", wrong, "UTF-8 text")
    return InvalidValueError(str(path), "no UTF-8", "UTF-8 text")


def text(cells: Sequence[str]) -> list[str]:
    """Return text cells unchanged.

    Raises:
        BadCellError: A cell is empty.
    """
    if not all(cells):
        raise BadCellError(next(i for i, cell in enumerate(cells) if not cell), "some text")
    return list(cells)


def _read(path: Path, file: TextIO, wanted: Sequence[Column]) -> Table:
    reader = csv.reader(file, strict=True)
    header = [name.strip() for name in _next_row(path, reader)]
    found = _found(path, header, _once_each(path, wanted))
    lines: list[IntArray] = []
    parts: dict[str, list[Any]] = {column.name: [] for column, _ in found}
    for numbers, rows in _chunks(path, reader, len(header)):
        lines.append(np.array(numbers, dtype=np.int64))
        cells = list(zip(*rows, strict=True))
        for column, place in found:
            parts[column.name].append(_converted(path, column, cells[place], numbers))
    if not lines:
        raise InvalidValueError(str(path), "a header without rows", "at least one row")
    return Table(path, np.concatenate(lines), {name: _joined(values) for name, values in parts.items()})


def _once_each(path: Path, wanted: Sequence[Column]) -> list[Column]:
    """Return the columns, each once: several meanings may share one that is converted alike."""
    by_name: dict[str, Column] = {}
    for column in wanted:
        other = by_name.setdefault(column.name, column)
        if other.convert is not column.convert:
            found = f"{column.name} for two meanings of different types"
            raise InvalidValueError(f"{path}:1: header", found, "a column for each")
        by_name[column.name] = replace(other, required=other.required or column.required)
    return list(by_name.values())


def _next_row(path: Path, reader: Any) -> list[str]:
    try:
        for row in reader:
            if row:
                return list(row)
    except csv.Error as error:
        raise InvalidValueError(f"{path}:{reader.line_num}", str(error), "comma-separated values") from None
    raise InvalidValueError(str(path), "empty", "a header and rows")


def _found(path: Path, header: list[str], wanted: Sequence[Column]) -> list[tuple[Column, int]]:
    missing = [column.name for column in wanted if column.required and column.name not in header]
    if missing:
        raise InvalidValueError(
            f"{path}:1: header", ",".join(header), f"also the columns {', '.join(missing)}"
        )
    for column in wanted:
        if header.count(column.name) > 1:
            raise InvalidValueError(
                f"{path}:1: header", ",".join(header), f"the column {column.name} exactly once"
            )
    return [(column, header.index(column.name)) for column in wanted if column.name in header]


def _chunks(path: Path, reader: Any, width: int) -> Iterator[tuple[list[int], list[list[str]]]]:
    numbered = ((reader.line_num, row) for row in reader if row)
    while True:
        try:
            chunk = list(itertools.islice(numbered, _CHUNK_ROWS))
        except csv.Error as error:
            raise InvalidValueError(
                f"{path}:{reader.line_num}", str(error), "comma-separated values"
            ) from None
        if not chunk:
            return
        for number, row in chunk:
            if len(row) != width:
                raise InvalidValueError(
                    f"{path}:{number}", ",".join(row), f"{width} columns, as in the header"
                )
        yield [number for number, _ in chunk], [row for _, row in chunk]


def _converted(path: Path, column: Column, cells: Sequence[str], numbers: list[int]) -> Any:
    try:
        return column.convert(cells)
    except BadCellError as error:
        where = f"{path}:{numbers[error.index]}: {column.name}"
        raise InvalidValueError(where, cells[error.index], error.expected) from None


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return list(itertools.chain.from_iterable(parts))

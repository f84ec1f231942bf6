"""Conversion of table columns to numbers; errors name the first bad cell."""

import re
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from qlm.domain.errors import QlmError
from qlm.simulator.scenario import IntArray

LENGTH_TOKENS_MAX: Final = 100_000_000
"""Longest accepted prompt or answer."""

TIME_MAX_S: Final = 4_000_000_000.0
"""Latest accepted arrival, about 126 years; its nanoseconds fit 64 bits."""

_WHOLE: Final = re.compile(r"\s*[0-9]{1,18}(\.0*)?\s*")
_TIMESTAMP: Final = re.compile(
    r"((?:19|20)[0-9]{2}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?)"
    r"(?:Z|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))?"
)
_NS_PER_MINUTE: Final = 60 * 10**9

WHOLE_EXPECTED: Final = f"a whole number of tokens from 0 to {LENGTH_TOKENS_MAX}"
SECONDS_EXPECTED: Final = f"a number from 0 to {TIME_MAX_S:g}"
TIMESTAMP_EXPECTED: Final = "a time such as 2023-11-16 18:15:46.6805900 or 2024-05-12 00:00:00.009930+00:00"


class BadCellError(QlmError):
    """Invalid cell.

    Attributes:
        index: Index in the column, from 0.
        expected: Description of valid cells.
    """

    def __init__(self, index: int, expected: str) -> None:
        super().__init__(f"cell {index}; expected {expected}")
        self.index = index
        self.expected = expected


def whole_numbers(cells: Sequence[str]) -> IntArray:
    """Parse token counts, 0 included; `12.0` is 12.

    Raises:
        BadCellError: A cell is negative, fractional, no number, or too large.
    """
    joined = "".join(cells)
    if joined.isascii() and joined.isdigit() and all(cells) and max(map(len, cells)) <= 18:
        numbers = np.array(list(map(int, cells)), dtype=np.int64)
    else:
        _first_failing(cells, lambda cell: _WHOLE.fullmatch(cell) is not None, WHOLE_EXPECTED)
        numbers = np.array([int(cell.partition(".")[0]) for cell in cells], dtype=np.int64)
    _first_true(numbers > LENGTH_TOKENS_MAX, WHOLE_EXPECTED)
    return numbers


def whole_numbers_or_none(cells: Sequence[str]) -> IntArray:
    """Parse token counts as `whole_numbers` does; an empty cell is 0."""
    return whole_numbers([cell or "0" for cell in cells])


def seconds(cells: Sequence[str]) -> IntArray:
    """Parse times in seconds as nanoseconds.

    Raises:
        BadCellError: A cell is negative, not finite, no number, or too late.
    """
    _first_failing(cells, _is_float, SECONDS_EXPECTED)
    return scaled_times(np.array(list(map(float, cells)), dtype=np.float64), 1e9, SECONDS_EXPECTED)


def scaled_times(values: np.ndarray, ns_per_unit: float, expected: str) -> IntArray:
    """Convert times in a unit to nanoseconds.

    Raises:
        BadCellError: A time is negative, not finite, or too late.
    """
    _first_true(~((values >= 0) & (values * (ns_per_unit / 1e9) <= TIME_MAX_S)), expected)
    whole = np.floor(values)
    # Whole units and fractions separately: a double has too few digits for the nanoseconds of a late time.
    rest = np.rint((values - whole) * ns_per_unit).astype(np.int64)
    return np.asarray(whole.astype(np.int64) * round(ns_per_unit) + rest, dtype=np.int64)


def timestamps(cells: Sequence[str]) -> IntArray:
    """Parse dates with times as nanoseconds since 1970; UTC unless they have an offset.

    Raises:
        BadCellError: A cell is no date with a time of day.
    """
    matches = [_TIMESTAMP.fullmatch(cell) for cell in cells]
    for index, match in enumerate(matches):
        if match is None:
            raise BadCellError(index, TIMESTAMP_EXPECTED)
    plain = [match[1] for match in matches if match]
    try:
        times = np.array(plain, dtype="datetime64[ns]").astype(np.int64)
    except ValueError:
        _first_failing(plain, _is_date, TIMESTAMP_EXPECTED)
        raise
    offsets = [int(m[2] + "1") * (int(m[3]) * 60 + int(m[4])) if m and m[2] else 0 for m in matches]
    return np.asarray(times - np.array(offsets, dtype=np.int64) * _NS_PER_MINUTE, dtype=np.int64)


def _is_float(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _is_date(cell: str) -> bool:
    try:
        np.datetime64(cell, "ns")
    except ValueError:
        return False
    return True


def _first_failing(cells: Sequence[str], sound: Callable[[str], bool], expected: str) -> None:
    for index, cell in enumerate(cells):
        if not sound(cell):
            raise BadCellError(index, expected)


def _first_true(bad: np.ndarray, expected: str) -> None:
    if bad.any():
        raise BadCellError(int(np.argmax(bad)), expected)

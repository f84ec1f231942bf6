"""Statements that write many rows at once.

A statement per row would pass the interpreter lock to a busy event loop and back, twice per row. So one
statement writes all rows: their short values are one JSON array, which SQLite's `json_each` turns into a
table, and their byte strings are one string, from which each row takes its part.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import orjson

Row = tuple[int | None, str, bytes]

_STATEMENT_BYTES_MAX: Final = 16 * 2**20
_INSERT: Final = """
INSERT INTO {table} SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),
    substr(:blobs, json_extract(value, '$[2]'), json_extract(value, '$[3]'))
FROM json_each(:shorts) WHERE true
"""


def insert_rows(
    connection: sqlite3.Connection, table: str, rows: Sequence[Row], *, or_else: str = ""
) -> None:
    """Insert rows of a number (None: the next row id), a short text and a byte string, in their order.

    Args:
        connection: In a transaction.
        table: Table and its three columns, as after INSERT INTO.
        rows: The rows.
        or_else: Clause for a row that exists: `ON CONFLICT ...`.
    """
    statement = _INSERT.format(table=table) + or_else
    for part in _parts(rows):
        # The first byte is there because SQLite returns NULL for a part of an empty byte string.
        blobs = b"".join((b"\0", *(blob for _, _, blob in part)))
        starts = accumulate((len(blob) for _, _, blob in part), initial=2)
        shorts = [(a, b, start, len(blob)) for (a, b, blob), start in zip(part, starts, strict=False)]
        connection.execute(statement, {"shorts": orjson.dumps(shorts).decode(), "blobs": blobs})


def json_array(values: Sequence[int] | Sequence[str]) -> str:
    """Encode values for SQLite's `json_each`."""
    return orjson.dumps(values).decode()


def _parts(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    start = size = 0
    for n, (_, _, blob) in enumerate(rows):
        size += len(blob)
        if size > _STATEMENT_BYTES_MAX and n > start:
            yield rows[start:n]
            start, size = n, len(blob)
    if start < len(rows):
        yield rows[start:]

"""Durable map in the broker's SQLite file, for the embedded store."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.rows import insert_rows, json_array
from qlm.domain.errors import BrokerUnavailableError, StoreUnavailableError
from qlm.domain.ports.journal import Journal


@dataclass(frozen=True, slots=True)
class _Change:
    puts: Sequence[tuple[str, bytes]]
    deletes: Sequence[str]


class SqliteJournal(Journal):
    """Journal in the broker's file: it shares the writer, and so the order of writes, with the broker."""

    def __init__(self, file: SqliteFile) -> None:
        """Use the journal of an open file; a file has one."""
        self._file = file

    @property
    def path(self) -> Path:
        return self._file.path

    def load(self) -> Sequence[tuple[str, bytes]]:
        try:
            return self._file.read_now(_read_entries)
        except BrokerUnavailableError as error:
            raise StoreUnavailableError(str(error)) from error

    def warnings(self) -> Sequence[str]:
        return self._file.damage

    async def write(
        self, puts: Sequence[tuple[str, bytes]], deletes: Sequence[str] = (), *, durable: bool = False
    ) -> None:
        try:
            await self._file.write(_write_entries, _Change(puts, deletes), durable=durable)
        except BrokerUnavailableError as error:
            raise StoreUnavailableError(str(error)) from error


def _read_entries(connection: sqlite3.Connection) -> list[tuple[str, bytes]]:
    return connection.execute("SELECT key, value FROM journal ORDER BY seq").fetchall()


def _write_entries(connection: sqlite3.Connection, changes: Sequence[_Change]) -> None:
    """Write the sum of many changes: deletes first, so that a key put again takes a new place."""
    puts, deletes = _sum(changes)
    if deletes:
        keys = json_array(sorted(deletes))
        connection.execute("DELETE FROM journal WHERE key IN (SELECT value FROM json_each(?))", (keys,))
    rows = [(None, key, value) for key, value in puts.items()]
    update = "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    insert_rows(connection, "journal (seq, key, value)", rows, or_else=update)


def _sum(changes: Sequence[_Change]) -> tuple[dict[str, bytes], set[str]]:
    puts: dict[str, bytes] = {}
    deletes: set[str] = set()
    for change in changes:
        puts.update(change.puts)
        for key in change.deletes:
            puts.pop(key, None)
        deletes.update(change.deletes)
    return puts, deletes

"""SQL statements on the messages of the file."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from qlm.broker.sqlite.rows import insert_rows, json_array
from qlm.domain.ids import QueueName

R = TypeVar("R")

Facts = tuple[tuple[str, int], ...]
"""Names and values of facts about the file."""

# A file of an earlier version has marks of messages that are gone; the id of the newest may be given again.
_RETURNED: Final = "SELECT message FROM returned WHERE message IN (SELECT id FROM message)"

_MARK_RETURNED: Final = """
INSERT OR IGNORE INTO returned
SELECT id FROM message WHERE id IN (SELECT value FROM json_each(?))
"""

_VOID_CHECKSUMS: Final = """
CREATE TRIGGER IF NOT EXISTS void_checksums AFTER INSERT ON fact WHEN NEW.name = 'clean'
BEGIN UPDATE fact SET value = 0 WHERE name = 'checksums'; END
"""


_FIND_VOID_CHECKSUMS: Final = "SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND name = 'void_checksums'"


@dataclass(frozen=True, slots=True)
class Message:
    """Message to store; ids grow in the order of publishing."""

    id: int
    queue: QueueName
    body: bytes


@dataclass(frozen=True, slots=True)
class Found:
    """Content of the file when it is opened.

    Attributes:
        messages: Id and queue of every message, oldest first.
        queues: Names of all queues ever published to.
        returned: Ids of messages in the file that were handed out and returned.
        redelivered_below: Messages with smaller ids may have been handed out before an unclean end.
        clean: True if the file was closed after all messages handed out were returned.
    """

    messages: Sequence[tuple[int, QueueName]]
    queues: Sequence[QueueName]
    returned: frozenset[int]
    redelivered_below: int
    clean: bool


def find(connection: sqlite3.Connection) -> Found:
    """Read all but the bodies."""
    facts = dict(connection.execute("SELECT name, value FROM fact").fetchall())
    return Found(
        messages=connection.execute("SELECT id, queue FROM message ORDER BY id").fetchall(),
        queues=[QueueName(name) for (name,) in connection.execute("SELECT name FROM queue ORDER BY name")],
        returned=frozenset(id for (id,) in connection.execute(_RETURNED)),
        redelivered_below=facts.get("redelivered_below", 0),
        clean=bool(facts.get("clean", 1)),
    )


def was_unclean(connection: sqlite3.Connection) -> bool:
    """Return whether the last process that used the file did not close it."""
    return connection.execute("SELECT 1 FROM fact WHERE name = 'clean' AND value = 0").fetchone() is not None


def checksums_mark(connection: sqlite3.Connection) -> int | None:
    """Return the mark by which the checksums of the file name it, 0 if they are void; None if it has none."""
    row = connection.execute("SELECT value FROM fact WHERE name = 'checksums'").fetchone()
    return None if row is None else int(row[0])


def lacks_checksums(connection: sqlite3.Connection) -> bool:
    """Return whether a version without checksums was the last to use the file, or the only one."""
    facts = dict(connection.execute("SELECT name, value FROM fact").fetchall())
    if "checksums" in facts:
        return facts["checksums"] == 0 and "clean" in facts
    return connection.execute(_FIND_VOID_CHECKSUMS).fetchone() is None


def set_checksums_mark(connection: sqlite3.Connection, mark: int) -> None:
    """Store the mark; a version that knows nothing of it makes it void when it opens the file."""
    connection.execute(_VOID_CHECKSUMS)
    connection.execute("INSERT OR REPLACE INTO fact VALUES ('checksums', ?)", (mark,))


def mark_probe(connection: sqlite3.Connection, probes: Sequence[None]) -> None:
    """Write something without a meaning, however many probes want it."""
    connection.execute("INSERT OR REPLACE INTO fact VALUES ('probe', 0)")


def read_bodies(connection: sqlite3.Connection, ids: Sequence[int]) -> dict[int, bytes]:
    """Read the bodies of these messages."""
    rows = connection.execute(
        "SELECT id, body FROM message WHERE id IN (SELECT value FROM json_each(?))", (json_array(ids),)
    )
    return dict(rows.fetchall())


def look_at_bodies(
    connection: sqlite3.Connection, ids: Sequence[int], look: Callable[[bytes], R]
) -> list[tuple[int, R]]:
    """Return the result of `look` for each of these messages that exists; reads one body at a time."""
    results = []
    for id in ids:
        row = connection.execute("SELECT body FROM message WHERE id = ?", (id,)).fetchone()
        if row is not None:
            results.append((id, look(row[0])))
    return results


def insert_messages(connection: sqlite3.Connection, messages: Sequence[Message]) -> None:
    """Store messages."""
    rows = [(message.id, message.queue, message.body) for message in messages]
    insert_rows(connection, "message (id, queue, body)", rows)


def list_queues(connection: sqlite3.Connection, changes: Sequence[tuple[QueueName, bool]]) -> None:
    """Store the names of queues (True) or delete them (False); the last change of a name counts."""
    final = dict(changes)
    kept = json_array([name for name, listed in final.items() if listed])
    gone = json_array([name for name, listed in final.items() if not listed])
    connection.execute("INSERT OR IGNORE INTO queue SELECT value FROM json_each(?)", (kept,))
    connection.execute("DELETE FROM queue WHERE name IN (SELECT value FROM json_each(?))", (gone,))


def delete_messages(connection: sqlite3.Connection, ids: Sequence[int]) -> None:
    """Delete messages permanently, with their marks."""
    gone = (json_array(ids),)
    connection.execute("DELETE FROM message WHERE id IN (SELECT value FROM json_each(?))", gone)
    connection.execute("DELETE FROM returned WHERE message IN (SELECT value FROM json_each(?))", gone)


def mark_returned(connection: sqlite3.Connection, ids: Sequence[int]) -> None:
    """Mark messages as handed out before; those deleted earlier in the same batch get no mark."""
    connection.execute(_MARK_RETURNED, (json_array(ids),))


def set_facts(connection: sqlite3.Connection, facts: Sequence[Facts]) -> None:
    """Set facts, in their order; drops marks of messages that are gone."""
    for some in facts:
        connection.executemany("INSERT OR REPLACE INTO fact VALUES (?, ?)", some)
    connection.execute("DELETE FROM returned WHERE message NOT IN (SELECT id FROM message)")

"""What is special to the SQLite file: one process, group commit, full disks, kill -9."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from qlm.broker.codec import RequestBody
from qlm.broker.sqlite import messages
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.threads import SWITCH_INTERVAL_S
from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.ids import QueueName
from support.flaky import until
from support.full_disk import full_disk
from support.requests import a_request

Q = QueueName("q")

# NULL for a mark whose message is gone.
BODIES_OF_MARKS = "SELECT (SELECT body FROM message WHERE id = returned.message) FROM returned"

# Prints each id once its publish is confirmed, and acknowledges every third message, until it is killed.
PUBLISHER = """
import asyncio, sys
from pathlib import Path
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile

async def publisher(broker, name):
    for n in range(1_000_000):
        await broker.publish("q", b"%d.%d" % (name, n))
        print(f"{name}.{n}", flush=True)

async def main():
    queues = await SqliteQueues.open(await SqliteFile.open(Path(sys.argv[1])))
    broker = queues.broker()
    await asyncio.gather(*(publisher(broker, name) for name in range(8)))

asyncio.run(main())
"""


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[SqliteFile]:
    file = await SqliteFile.open(tmp_path / "queue.db")
    yield file
    await file.close()


def test_every_confirmed_message_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    child = subprocess.Popen([sys.executable, "-c", PUBLISHER, path], stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        confirmed = [child.stdout.readline().strip() for _ in range(500)]
        os.kill(child.pid, signal.SIGKILL)
        # The last line may be cut off; a whole one is a promise, too.
        confirmed += [line.strip() for line in child.stdout if line.endswith("\n")]

    async def found() -> list[str]:
        opened = await SqliteFile.open(path)
        deliveries = await (await SqliteQueues.open(opened)).broker().get(Q, 1_000_000)
        await opened.close()
        return [delivery.body.decode() for delivery in deliveries]

    bodies = asyncio.run(found())
    assert len(bodies) == len(set(bodies))
    assert set(confirmed) <= set(bodies)
    for name in range(8):
        numbers = [int(body.split(".")[1]) for body in bodies if body.startswith(f"{name}.")]
        assert numbers == list(range(len(numbers))), "a later message is there without an earlier one"


async def test_publishers_at_once_share_a_commit(file: SqliteFile) -> None:
    broker = (await SqliteQueues.open(file)).broker()
    statements: list[str] = []
    await file.write(_trace, statements)
    await asyncio.gather(*(broker.publish(Q, b"x") for _ in range(200)))
    assert 1 <= statements.count("COMMIT") <= 3


async def test_a_publish_is_synced_to_disk_and_an_acknowledgement_alone_is_not(file: SqliteFile) -> None:
    broker = (await SqliteQueues.open(file)).broker()
    await broker.publish(Q, b"x")
    statements: list[str] = []
    await file.write(_trace, statements)  # not durable: the level is NORMAL now
    (delivery,) = await broker.get(Q)
    await broker.ack(delivery)
    await file.write(_do_nothing, None)
    assert not [statement for statement in statements if "synchronous" in statement]
    await broker.publish(Q, b"y")
    full = statements.index("PRAGMA synchronous = FULL")
    assert "INSERT INTO message" in " ".join(statements[full:])


def _do_nothing(connection: sqlite3.Connection, _: Sequence[None]) -> None:
    connection.execute("SELECT 1")


def _trace(connection: sqlite3.Connection, lists: Sequence[list[str]]) -> None:
    connection.set_trace_callback(lists[0].append)


async def test_only_durable_writes_wait_for_the_disk(file: SqliteFile) -> None:
    seen: list[int] = []
    await file.write(_note_synchronous, seen, durable=True)
    await file.write(_note_synchronous, seen)
    await file.write(_note_synchronous, seen, durable=True)
    assert seen == [2, 1, 2]  # FULL, NORMAL, FULL


def _note_synchronous(connection: sqlite3.Connection, lists: Sequence[list[int]]) -> None:
    lists[0].append(connection.execute("PRAGMA synchronous").fetchone()[0])


async def test_a_full_disk_is_an_error_until_there_is_room_again(file: SqliteFile) -> None:
    queues = await SqliteQueues.open(file)
    broker = queues.broker()
    await broker.publish(Q, b"before")
    (delivery,) = await broker.get(Q)
    await file.write(_limit_pages, 20)
    with pytest.raises(BrokerUnavailableError, match=r"queue\.db: database or disk is full"):
        await broker.publish(Q, b"x" * 200_000)
    assert await broker.depth(Q) == 0
    await broker.ack(delivery)
    await file.write(_limit_pages, 1_000_000)
    await broker.publish(Q, b"after")
    assert [d.body for d in await broker.get(Q, 5)] == [b"after"]
    assert await file.read(_count_messages) == 1


async def test_a_probe_finds_a_full_disk_though_nothing_is_published(file: SqliteFile) -> None:
    broker = (await SqliteQueues.open(file)).broker()
    await broker.probe()
    with full_disk(), pytest.raises(BrokerUnavailableError, match=r"queue\.db: (disk|database or disk)"):
        await broker.probe()
    await broker.probe()


def _limit_pages(connection: sqlite3.Connection, limits: Sequence[int]) -> None:
    connection.execute(f"PRAGMA max_page_count = {limits[0]}")


def _count_messages(connection: sqlite3.Connection) -> int:
    count: int = connection.execute("SELECT count(*) FROM message").fetchone()[0]
    return count


async def test_an_acknowledgement_survives_a_commit_that_failed(file: SqliteFile) -> None:
    broker = (await SqliteQueues.open(file)).broker()
    await broker.publish(Q, b"1")
    (delivery,) = await broker.get(Q)
    await file.write(_limit_pages, 20)
    too_much = asyncio.ensure_future(broker.publish(Q, b"x" * 200_000))
    await asyncio.sleep(0)
    await broker.ack(delivery)  # goes into the same commit
    with pytest.raises(BrokerUnavailableError):
        await too_much
    await file.write(_limit_pages, 1_000_000)
    assert await file.read(_count_messages) == 0


async def test_a_value_that_cannot_be_stored_does_not_harm_its_neighbours(file: SqliteFile) -> None:
    broker = (await SqliteQueues.open(file)).broker()
    good, bad = await asyncio.gather(
        broker.publish(Q, b"good"), broker.publish(QueueName("\ud800"), b"bad"), return_exceptions=True
    )
    assert good is None
    assert isinstance(bad, BrokerUnavailableError)
    assert [d.body for d in await broker.get(Q, 5)] == [b"good"]


async def test_a_closed_file_refuses_all_work(file: SqliteFile) -> None:
    queues = await SqliteQueues.open(file)
    broker = queues.broker()
    await broker.publish(Q, b"1")
    (delivery,) = await broker.get(Q)
    await file.close()
    await file.close()
    calls = [broker.publish(Q, b"2"), broker.get(Q), broker.ack(delivery), broker.requeue(delivery)]
    for call in [*calls, broker.depth(Q), broker.queues(), SqliteQueues.open(file)]:
        with pytest.raises(BrokerUnavailableError, match=r"queue\.db is closed"):
            await call
    await broker.close()


async def test_a_closed_client_refuses_work_and_leaves_the_others_alone(file: SqliteFile) -> None:
    queues = await SqliteQueues.open(file)
    broker, other = queues.broker(), queues.broker()
    await broker.close()
    with pytest.raises(BrokerUnavailableError, match="closed"):
        await broker.get(Q)
    await other.publish(Q, b"1")
    assert await other.depth(Q) == 1


async def test_a_publish_whose_caller_left_is_stored_and_ready(file: SqliteFile) -> None:
    broker = (await SqliteQueues.open(file)).broker()
    task = asyncio.ensure_future(broker.publish(Q, b"1"))
    await asyncio.sleep(0)
    task.cancel()
    await broker.publish(Q, b"2")
    assert [d.body for d in await broker.get(Q, 5)] == [b"1", b"2"]


async def test_a_clean_reopen_marks_only_what_was_handed_out(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    file = await SqliteFile.open(path)
    queues = await SqliteQueues.open(file)
    broker = queues.broker()
    for n in range(3):
        await broker.publish(Q, b"%d" % n)
    await broker.get(Q)
    await queues.close()
    await file.close()
    file = await SqliteFile.open(path)
    deliveries = await (await SqliteQueues.open(file)).broker().get(Q, 5)
    await file.close()
    assert [d.redelivered for d in deliveries] == [True, False, False]


async def test_the_mark_of_an_unclean_end_stays_over_clean_ones(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    file = await SqliteFile.open(path)
    await (await SqliteQueues.open(file)).broker().publish(Q, b"0")
    await file.close()  # without queues.close(): unclean
    for _ in range(2):
        file = await SqliteFile.open(path)
        queues = await SqliteQueues.open(file)
        await queues.broker().publish(Q, b"new")
        await queues.close()
        await file.close()
    file = await SqliteFile.open(path)
    deliveries = await (await SqliteQueues.open(file)).broker().get(Q, 5)
    await file.close()
    assert [(d.body, d.redelivered) for d in deliveries] == [(b"0", True), (b"new", False), (b"new", False)]


async def test_closing_leaves_no_thread_behind(tmp_path: Path) -> None:
    file = await SqliteFile.open(tmp_path / "queue.db")
    await (await SqliteQueues.open(file)).broker().publish(Q, b"1")
    await file.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("qlm-sqlite")]


async def test_opening_lets_the_writer_in_beside_a_loop_that_never_rests(tmp_path: Path) -> None:
    """With Python's own interval the writer may starve for seconds; whether it does is up to the kernel."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    try:
        await (await SqliteFile.open(tmp_path / "queue.db")).close()
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    finally:
        sys.setswitchinterval(before_s)


async def test_the_id_of_a_deleted_message_is_given_again_without_its_mark(tmp_path: Path) -> None:
    path, copied = tmp_path / "queue.db", tmp_path / "crashed.db"
    first = await SqliteFile.open(path)
    queues = await SqliteQueues.open(first)
    broker = queues.broker()
    await broker.publish(Q, b"old")
    (delivery,) = await broker.get(Q)
    await broker.requeue(delivery)
    (delivery,) = await broker.get(Q)
    await broker.ack(delivery)
    await first.write(
        messages.list_queues, (Q, True)
    )  # after the deletion and the mark, in a file that goes on
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{copied}{suffix}")
    await first.close()
    second = await SqliteFile.open(copied)
    broker = (await SqliteQueues.open(second)).broker()
    await broker.publish(Q, b"new")
    (delivery,) = await broker.get(Q)
    await second.close()
    assert (delivery.body, delivery.redelivered) == (b"new", False)


async def test_new_messages_are_handed_out_from_memory_and_returned_ones_from_the_disk(
    file: SqliteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qlm.broker.sqlite.fresh_bodies.BYTES_MAX", 4)
    reads = list[Sequence[int]]()

    def counted(connection: sqlite3.Connection, ids: Sequence[int]) -> dict[int, bytes]:
        reads.append(ids)
        return read_bodies(connection, ids)

    read_bodies = messages.read_bodies
    monkeypatch.setattr(messages, "read_bodies", counted)
    broker = (await SqliteQueues.open(file)).broker()
    for body in (b"in", b"me", b"not"):
        await broker.publish(Q, body)
    first, second = await broker.get(Q, 2)
    assert (first.body, second.body, reads) == (b"in", b"me", [])
    await broker.requeue(first)
    again, third = await broker.get(Q, 2)
    assert (again.body, third.body, len(reads)) == (b"in", b"not", 1)
    await broker.publish(Q, b"room")
    assert [delivery.body for delivery in await broker.get(Q)] == [b"room"]
    assert len(reads) == 1


async def test_few_requests_are_kept_beside_the_bodies_in_memory(
    file: SqliteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [RequestBody.of(a_request(f"r{n}")) for n in range(3)]
    monkeypatch.setattr("qlm.broker.sqlite.fresh_bodies.WHOLE_BYTES_MAX", sum(map(len, bodies[:2])))
    broker = (await SqliteQueues.open(file)).broker()
    for body in bodies:
        await broker.publish(Q, body)
    deliveries = await broker.get(Q, 3)
    assert [delivery.body for delivery in deliveries] == bodies
    assert [type(delivery.body) for delivery in deliveries] == [RequestBody, RequestBody, bytes]


async def test_an_acknowledged_message_is_deleted_though_nothing_else_is_written(file: SqliteFile) -> None:
    broker = (await SqliteQueues.open(file)).broker()
    await broker.publish(Q, b"done")
    (delivery,) = await broker.get(Q)
    await broker.ack(delivery)
    await until(lambda: not file.read_now(messages.find).messages)


@pytest.mark.parametrize("deletes_first", [False, True])
async def test_the_mark_of_a_returned_message_goes_with_it(file: SqliteFile, deletes_first: bool) -> None:
    """Also if both are written in one batch, in which another deletion comes first."""
    broker = (await SqliteQueues.open(file)).broker()
    for body in (b"other", b"returned", b"waits"):
        await broker.publish(Q, body)
    other, again = await broker.get(Q, 2)
    if deletes_first:
        await broker.ack(other)
    await broker.requeue(again)
    (again,) = await broker.get(Q)
    await broker.ack(again)
    (waits,) = await broker.get(Q)
    await broker.requeue(waits)
    await file.write(messages.list_queues, (Q, True))  # after all that
    marked = await file.read(lambda connection: connection.execute(BODIES_OF_MARKS).fetchall())
    assert marked == [(b"waits",)], "the mark of a message that is there stays"

"""What the soak finds left of requests in the file of the embedded queue."""

from pathlib import Path

from benchmarks.soak.left import left_in_file
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.journal import SqliteJournal
from qlm.domain.ids import QueueName

OF_NO_REQUEST = [(key, b"") for key in ("incarnation", "probe", "clusters", "history")]
Q = QueueName("q")


async def test_entries_of_no_request_and_kept_ended_requests_are_not_left_over(tmp_path: Path) -> None:
    file = await SqliteFile.open(tmp_path / "queue.sqlite")
    journal = SqliteJournal(file)
    await journal.write([*OF_NO_REQUEST, ("ended/1", b""), ("ended/2", b"")])
    assert not list(left_in_file(tmp_path, 0, 2))
    assert list(left_in_file(tmp_path, 0, 1)) == ["2 ended requests in the journal; expected at most 1"]
    await journal.write([("log/0/3", b"")])
    assert list(left_in_file(tmp_path, 0, 2)) == ["1 entries log in the journal"]
    await file.close()


async def test_a_message_its_mark_and_its_queue_are_left_over(tmp_path: Path) -> None:
    file = await SqliteFile.open(tmp_path / "queue.sqlite")
    queues = await SqliteQueues.open(file)
    broker = queues.broker()
    await broker.publish(Q, b"1")
    (delivery,) = await broker.get(Q)
    await broker.requeue(delivery)
    await queues.close()
    assert list(left_in_file(tmp_path, 0, 0)) == [
        "1 messages and 1 marks of returned ones in SQLite",
        "1 queues in SQLite, 0 before",
    ]
    await file.close()

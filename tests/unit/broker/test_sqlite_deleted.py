"""A queue file that somebody deletes or replaces while it is open."""

from pathlib import Path

import pytest

from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.ids import QueueName

Q = QueueName("q")


@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("replaced", [False, True])
async def test_a_publish_to_a_file_that_is_gone_is_refused(
    tmp_path: Path, replaced: bool, suffix: str
) -> None:
    path = tmp_path / "queue.sqlite"
    file = await SqliteFile.open(path)
    queues = await SqliteQueues.open(file)
    broker = queues.broker()
    await broker.publish(Q, b"kept")
    gone = tmp_path / f"{path.name}{suffix}"
    gone.unlink()
    if replaced:
        gone.write_bytes(b"another")
    with pytest.raises(BrokerUnavailableError, match=r"is gone|was replaced"):
        await broker.publish(Q, b"nobody would read this")
    with pytest.raises(BrokerUnavailableError):
        await queues.close()
    await file.close()

"""Claims of batches by gateways that share files: one at a time, and none of a dead one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qlm.domain.errors import UndecodableDataError
from qlm.gateway.files.disk.life_lock import LifeLock
from qlm.gateway.files.disk.storage import storage_in
from qlm.gateway.files.records import BatchState
from support.full_disk import full_disk
from support.gateway import SystemClock
from support.opened_files import opened_below
from support.stored_batches import add_batch, disk_claim, folder_of

CLAIMS = """
import signal, sys
from pathlib import Path
from qlm.cli.runtime.clock import SystemClock
from qlm.gateway.files.disk.storage import storage_in
claim = storage_in(Path(sys.argv[1]), SystemClock()).batches.claim(sys.argv[2])
print(claim.number, flush=True)
signal.pause()
"""


def test_a_killed_gateway_has_no_claim(tmp_path: Path) -> None:
    storage = storage_in(tmp_path / "files", SystemClock())
    _, place = add_batch(storage, b"x\n", endpoint="/v1/completions")
    command = [sys.executable, "-c", CLAIMS, str(tmp_path / "files"), place]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as gateway:
        try:
            assert gateway.stdout is not None and gateway.stdout.readline() == b"1\n"
            assert disk_claim(storage, place) is None
        finally:
            gateway.kill()
    second = disk_claim(storage, place)
    assert second is not None and second.number == 2
    assert disk_claim(storage, place) is None
    second.release()


def test_a_claim_of_another_machine_is_valid_until_it_is_stale(tmp_path: Path) -> None:
    storage = storage_in(tmp_path / "files", SystemClock())
    _, place = add_batch(storage, b"x\n", endpoint="/v1/completions")
    (folder_of(storage, place) / "claim-000001").write_bytes(b"another boot")
    assert disk_claim(storage, place) is None
    os.utime(folder_of(storage, place) / "claim-000001", (0, 0))
    claim = disk_claim(storage, place)
    assert claim is not None and claim.number == 2
    claim.release()


def test_a_claim_is_one_gateways_until_it_is_stale(tmp_path: Path) -> None:
    storage = storage_in(tmp_path / "files", SystemClock())
    spec, place = add_batch(storage, b"x\n", endpoint="/v1/completions")
    first = disk_claim(storage, place)
    assert first is not None and first.renew()
    assert disk_claim(storage, place) is None
    os.utime(first.path("claim"), (0, 0))  # as if it had not been renewed for long
    second = disk_claim(storage, place)
    assert second is not None and not first.renew() and second.renew()
    first.lock.release()
    second.lock.release()
    second.note(BatchState(status="in_progress", total=3))
    first.note(BatchState(status="in_progress", total=9))
    assert storage.batches.read(place) is not None
    found = storage.batches.get("a", spec.id)
    assert found is not None and found.state.total == 3
    # Who ends it first ends it, even with an old claim.
    assert first.end(BatchState(status="completed", output_file_id="file-1"))
    assert not second.end(BatchState(status="completed", output_file_id="file-2"))
    found = storage.batches.get("a", spec.id)
    assert found is not None and found.ended and found.state.output_file_id == "file-1"
    storage.batches.close(place)
    assert storage.batches.open_places() == {}
    assert disk_claim(storage, place) is None
    assert storage.batches.get("b", spec.id) is None


def test_no_claim_is_made_of_a_batch_whose_state_cannot_be_read(tmp_path: Path) -> None:
    storage = storage_in(tmp_path / "files", SystemClock())
    _, place = add_batch(storage, b"x\n", endpoint="/v1/completions")
    folder = folder_of(storage, place)
    (folder / "state-000001.json").write_bytes(b"{")
    with pytest.raises(UndecodableDataError, match=r"state-000001\.json is damaged"):
        storage.batches.claim(place)
    assert opened_below(folder) == []
    assert list(folder.glob("claim-*")) == []


def test_a_lock_that_cannot_be_written_is_gone(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(OSError, match="too large"):
        LifeLock(tmp_path / "claim")
    assert opened_below(tmp_path) == []
    assert list(tmp_path.iterdir()) == []

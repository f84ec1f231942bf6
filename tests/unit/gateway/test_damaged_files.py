"""Damage of what is known of files and batches on the disk: it costs that file or batch, and no other."""

import os
import shutil
from pathlib import Path

import pytest

from qlm.cli.runtime.clock import SystemClock
from qlm.domain.errors import UndecodableDataError
from qlm.gateway.files.disk.storage import storage_in
from qlm.gateway.files.records import BatchState
from qlm.gateway.files.storage import Storage
from support.damaged import flip
from support.stored_batches import add_batch, add_file, disk_claim, folder_of

ENDPOINT = "/v1/completions"
DAMAGES = [b"X", b"{}", b"[]", b"", b'{"folder": "nowhere"}']


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return storage_in(tmp_path / "files", SystemClock())


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_batch_is_run_whose_entry_among_the_open_ones_is_damaged(
    storage: Storage, tmp_path: Path, damage: bytes
) -> None:
    other, other_place = add_batch(storage, b"x", endpoint=ENDPOINT)
    spec, place = add_batch(storage, b"x", endpoint=ENDPOINT)
    (tmp_path / "files" / "open" / spec.id).write_bytes(damage)
    assert storage.batches.open_places() == {other.id: other_place, spec.id: place}
    claim = disk_claim(storage, place)
    assert claim is not None
    claim.release()


@pytest.mark.parametrize("name", ["batch.json", "state-000001.json", "end.json"])
def test_a_damaged_batch_costs_no_other(
    storage: Storage, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    damaged, place = add_batch(storage, b"x", endpoint=ENDPOINT)
    claim = disk_claim(storage, place)
    assert claim is not None
    claim.note(BatchState(status="in_progress"))
    if name == "end.json":
        assert claim.end(BatchState(status="completed"))
    claim.release()
    path = folder_of(storage, place) / name
    flip(path, 0)
    sound, other_place = add_batch(storage, b"x", endpoint=ENDPOINT)
    again = storage_in(tmp_path / "files", SystemClock())
    for _ in range(2):
        again.batches.sweep(3600)
        assert [each.spec.id for each in again.batches.newest()] == [sound.id]
        assert [each.spec.id for each in again.batches.page("a")[0]] == [sound.id]
        assert again.batches.read(place) is None
        assert again.batches.count_open("a") == 1
    for get in (again.batches.find, lambda id: again.batches.get("a", id)):
        with pytest.raises(UndecodableDataError, match=f"^{path.name} is damaged$"):
            get(damaged.id)
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith(f"{path} is damaged")
    claim = disk_claim(again, other_place)
    assert claim is not None
    claim.release()


def test_a_damaged_file_costs_no_other_of_its_tenant(
    storage: Storage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged, sound = (add_file(storage, b"x" * 10) for _ in range(2))
    (path,) = (tmp_path / "files").glob(f"*/files/{damaged.id}.json")
    flip(path, 0)
    for _ in range(2):
        storage.files.sweep()
        assert list(storage.files.page("a")[0]) == [sound]
        assert storage.files.used_bytes("a") == 10
    assert path.exists(), "what is known of it may be put back"
    with pytest.raises(UndecodableDataError, match=f"^{damaged.id}.json is damaged$"):
        storage.files.get("a", damaged.id)
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith(f"{path} is damaged")
    assert storage.files.delete("a", damaged.id)
    assert list(path.parent.glob(f"{damaged.id}*")) == []


def test_the_entry_of_a_batch_whose_folder_was_deleted_goes_when_it_is_old(
    storage: Storage, tmp_path: Path
) -> None:
    added = [add_batch(storage, b"x", endpoint=ENDPOINT) for _ in range(3)]
    old, recent, kept = (tmp_path / "files" / "open" / spec.id for spec, _ in added)
    for _, place in added[:2]:
        shutil.rmtree(folder_of(storage, place))
    for path in (old, kept):
        os.utime(path, (1.0, 1.0))
    storage.batches.sweep(3600)
    assert [path.exists() for path in (old, recent, kept)] == [False, True, True]

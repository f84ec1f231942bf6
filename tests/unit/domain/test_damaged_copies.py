"""Copies of damaged files: they are on the disk before the file is changed or deleted."""

import os
from pathlib import Path

import pytest

from qlm.domain.shell.damage import keep_copy


def test_a_copy_is_synced_before_it_has_its_name_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, kept = tmp_path / "file", tmp_path / "file.damaged"
    path.write_bytes(b"damaged")
    synced: list[tuple[Path, bytes]] = []

    def fsync(fd: int) -> None:
        each = Path(f"/proc/self/fd/{fd}").readlink()
        synced.append((each, kept.read_bytes() if each.is_dir() else each.read_bytes()))

    monkeypatch.setattr(os, "fsync", fsync)
    keep_copy(path, kept)
    assert synced == [(tmp_path / "file.damaged.new", b"damaged"), (tmp_path, b"damaged")]
    assert kept.read_bytes() == path.read_bytes() == b"damaged"


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, kept = tmp_path / "file", tmp_path / "file.damaged"
    path.write_bytes(b"damaged")
    monkeypatch.setattr(os, "fsync", _refuse)
    with pytest.raises(OSError, match="No space"):
        keep_copy(path, kept)
    assert list(tmp_path.iterdir()) == [path]


def _refuse(fd: int) -> None:
    raise OSError(28, "No space left on device")

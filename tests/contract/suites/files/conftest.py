"""Place for files and batches under test: a folder."""

from pathlib import Path

import pytest

from contract.suites.files.places import DiskPlace, Place


@pytest.fixture(params=["disk"])
def place(tmp_path: Path) -> Place:
    return DiskPlace(tmp_path / "files")

"""Place for files and batches under test: a folder, and a bucket of S3-compatible storage."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.suites.files.places import DiskPlace, Place, S3Place
from support.needs import need
from support.s3 import missing, new_bucket, running_s3


@pytest.fixture(scope="package")
def s3_url() -> Iterator[str]:
    need(missing())
    with running_s3() as url:
        yield url


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "disk":
        return DiskPlace(tmp_path / "files")
    return S3Place(new_bucket(request.getfixturevalue("s3_url")))

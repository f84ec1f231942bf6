"""A bucket that refuses some calls: named as such, and nothing is left of what could not be done."""

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from qlm.cli.runtime.clock import SystemClock
from qlm.domain.errors import StorageUnavailableError
from qlm.gateway.files.s3.bucket import Bucket
from qlm.gateway.files.s3.errors import StorageRefusedError
from qlm.gateway.files.s3.storage import check_bucket, storage_of_bucket
from support.needs import need
from support.s3 import missing, new_bucket, running_s3
from support.stored_batches import add_batch


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    need(missing())
    with running_s3() as url:
        yield new_bucket(url)


def refuse(bucket: Bucket, patch: pytest.MonkeyPatch, call: str, code: str) -> None:
    def refused(**_: Any) -> None:
        raise ClientError({"Error": {"Code": code}}, call)

    patch.setattr(bucket._client, call, refused)


def test_a_server_without_conditional_writes_is_refused_at_start(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(bucket, monkeypatch, "put_object", "NotImplemented")
    with pytest.raises(StorageRefusedError, match="it lacks a call that files and batches need"):
        check_bucket(bucket)


def test_a_check_that_fails_half_way_leaves_no_object(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        refuse(bucket, patch, "get_object", "AccessDenied")
        with pytest.raises(StorageRefusedError, match="it does not allow it"):
            check_bucket(bucket)
    assert bucket.keys("") == []


def test_a_batch_that_was_never_whole_counts_for_none(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = storage_of_bucket(bucket, SystemClock())
    put_json = bucket.put_json

    def put(key: str, value: Any) -> None:
        if key.endswith("/batch.json"):
            raise StorageUnavailableError("away")
        put_json(key, value)

    monkeypatch.setattr(bucket, "put_json", put)
    with pytest.raises(StorageUnavailableError):
        add_batch(storage, b"x\n", endpoint="/v1/completions")
    assert (storage.batches.page("a")[0], storage.batches.count_open("a")) == ([], 0)

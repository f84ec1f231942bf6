"""Lists of files and batches in a bucket: what a part of one costs, and where old ones are."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import pytest

from qlm.gateway.files.records import BatchSpec, Page, StoredFile, tenant_name
from qlm.gateway.files.s3.bucket import Bucket
from qlm.gateway.files.s3.storage import storage_of_bucket
from support.gateway import SystemClock
from support.s3 import bucket_again, new_bucket
from support.stored_batches import add_batch, add_file

TENANT = "default"
MADE_S = 1_700_000_000
"""Time at which an earlier version made the records of these tests."""


@pytest.fixture
def bucket(s3_url: str) -> Bucket:
    return new_bucket(s3_url)


def counted(bucket: Bucket) -> Counter[str]:
    """Count the calls from now on."""
    calls: Counter[str] = Counter()

    def note(request: Any, **_: Any) -> None:
        calls["lists" if "list-type=2" in request.url else "objects"] += 1

    bucket._client.meta.events.register("before-send.s3", note)
    return calls


def in_parts(page: Callable[[str, str | None, int], Page[Any]], limit: int) -> list[str]:
    """Return the ids of a list that is asked for in parts."""
    seen: list[str] = []
    more = True
    while more:
        part, more = page(TENANT, seen[-1] if seen else None, limit)
        seen += [each.id if isinstance(each, StoredFile) else each.spec.id for each in part]
    return seen


def test_a_part_of_a_list_of_files_costs_what_it_shows(bucket: Bucket, s3_url: str) -> None:
    writer = storage_of_bucket(bucket_again(s3_url, bucket), SystemClock())
    made = {add_file(writer, b"x", tenant=TENANT).id for _ in range(40)}
    files, calls = storage_of_bucket(bucket, SystemClock()).files, counted(bucket)
    part, more = files.page(TENANT, None, 3)
    assert (len(part), more) == (3, True)
    assert calls == {"lists": 1, "objects": 4}
    found = in_parts(files.page, 7)
    assert len(found) == 40 and set(found) == made
    calls.clear()
    assert files.used_bytes(TENANT) == 40
    assert calls == {"lists": 1}


def test_a_part_of_a_list_of_batches_costs_what_it_shows(bucket: Bucket, s3_url: str) -> None:
    writer = storage_of_bucket(bucket_again(s3_url, bucket), SystemClock())
    made = set()
    for _ in range(12):
        spec, place = add_batch(writer, b"x", endpoint="/v1/completions", tenant=TENANT)
        claim = writer.batches.claim(place)
        assert claim is not None and claim.end(claim.state)
        writer.batches.close(place)
        made.add(spec.id)
    batches, calls = storage_of_bucket(bucket, SystemClock()).batches, counted(bucket)
    part, more = batches.page(TENANT, None, 2)
    assert (len(part), more) == (2, True)
    assert calls == {"lists": 1, "objects": 6}  # `batch.json` and `end.json` of two and of the next one
    found = in_parts(batches.page, 4)
    assert len(found) == 12 and set(found) == made


def earlier_file(bucket: Bucket, number: int) -> str:
    id = f"file-{(number * 37) % 256:02x}{'0' * 30}"
    key = f"{tenant_name(TENANT)}/files/{id}"
    made = StoredFile(
        id=id, name="x", purpose="batch", size_bytes=1, created_s=MADE_S + number, expires_s=2**40
    )
    bucket.put(key, b"x")
    bucket.put_json(f"{key}.json", asdict(made))
    return id


def earlier_batch(bucket: Bucket, number: int) -> str:
    id = f"batch_{(number * 37) % 256:02x}{'0' * 30}"
    spec = BatchSpec(
        id=id,
        tenant=TENANT,
        endpoint="/v1/completions",
        window="1h",
        input_file_id="file-x",
        created_s=MADE_S + number,
        expires_s=2**40,
        metadata={},
        output_kept_s=3600,
    )
    bucket.put_json(f"{tenant_name(TENANT)}/batches/{id}/batch.json", asdict(spec))
    return id


def test_what_an_earlier_version_made_comes_last_in_its_order(bucket: Bucket) -> None:
    storage = storage_of_bucket(bucket, SystemClock())
    files = [earlier_file(bucket, number) for number in range(5)][::-1]
    batches = [earlier_batch(bucket, number) for number in range(5)][::-1]
    new_file = add_file(storage, b"x", tenant=TENANT)
    new_batch, _ = add_batch(storage, b"x", endpoint="/v1/completions", tenant=TENANT)
    new_files = {new_file.id, new_batch.input_file_id}
    found = [each.id for each in storage.files.page(TENANT)[0]]
    assert (set(found[:2]), found[2:]) == (new_files, files)
    for limit in (1, 2, 3):
        assert in_parts(storage.files.page, limit) == found
        assert in_parts(partial(storage.files.page, oldest_first=True), limit) == found[::-1]
    wanted = [new_batch.id, *batches]
    assert in_parts(storage.batches.page, 10) == in_parts(storage.batches.page, 2) == wanted
    assert [each.spec.id for each in storage.batches.newest(4)] == wanted[:4]
    assert storage.files.used_bytes(TENANT) == 7

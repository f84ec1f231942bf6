"""Files in S3-compatible storage: parts, memory, broken uploads, conditions, and what is said of faults."""

import asyncio
import hashlib
import json
import os
import socket
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError

from qlm.cli.runtime.clock import SystemClock
from qlm.domain.errors import StorageUnavailableError
from qlm.gateway.files.s3 import batches as s3_batches
from qlm.gateway.files.s3 import files as s3_files
from qlm.gateway.files.s3.bucket import Bucket
from qlm.gateway.files.s3.errors import SESSION_TOKEN, StorageRefusedError
from qlm.gateway.files.s3.settings import S3Settings
from qlm.gateway.files.s3.storage import bucket_of, check_bucket, storage_of_bucket
from qlm.gateway.files.threads import DaemonThreads
from support.needs import need
from support.ports import free_port
from support.s3 import CREDENTIALS, missing, new_bucket, running_s3
from support.stored_batches import add_batch, add_file
from support.wire import Wire

MIB = 1024 * 1024

WRITES_AND_WAITS = """
import json, signal, sys
from qlm.cli.runtime.clock import SystemClock
from qlm.gateway.files.s3.settings import S3Settings
from qlm.gateway.files.s3.storage import bucket_of, storage_of_bucket
settings, credentials = map(json.loads, sys.argv[1:])
storage = storage_of_bucket(bucket_of(S3Settings(**settings), credentials), SystemClock())
incoming = storage.files.incoming("a")
incoming.write(b"x" * (20 << 20))
print("two parts", flush=True)
signal.pause()
"""


LOGS_ALL = """
import json, logging, sys
from qlm.cli.runtime.logs import log_to_stderr
from qlm.gateway.files.s3.settings import S3Settings
from qlm.gateway.files.s3.storage import bucket_of, check_bucket
log_to_stderr(logging.DEBUG)
settings, credentials = map(json.loads, sys.argv[1:])
check_bucket(bucket_of(S3Settings(**settings), credentials))
logging.debug("the last line")
"""

CALLS_AND_ENDS = """
import asyncio, contextlib, json, sys
from qlm.cli.runtime.clock import SystemClock
from qlm.gateway.files.s3.settings import S3Settings
from qlm.gateway.files.s3.storage import bucket_of, storage_of_bucket
settings, credentials = map(json.loads, sys.argv[1:])
async def ends():
    storage = storage_of_bucket(bucket_of(S3Settings(**settings), credentials), SystemClock())
    calls = [storage.call(storage.files.page, "a") for _ in range(50)]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            await asyncio.gather(*calls)
asyncio.run(ends())
"""


@pytest.fixture
def bucket(s3_url: str) -> Bucket:
    return new_bucket(s3_url)


def test_a_large_file_comes_and_goes_in_bounded_memory(bucket: Bucket) -> None:
    storage, piece = storage_of_bucket(bucket, SystemClock()), os.urandom(256 * 1024)
    pieces, sent, received = 200 * MIB // len(piece), hashlib.sha256(), hashlib.sha256()
    tracemalloc.start()
    try:
        incoming = storage.files.incoming("a")
        for _ in range(pieces):
            incoming.write(piece)
            sent.update(piece)
        made = incoming.keep("x", "batch", 3600)
        incoming.discard()
        with storage.files.open("a", made.id) as file:
            while data := file.read(len(piece)):
                received.update(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (made.size_bytes, received.digest()) == (200 * MIB, sent.digest())
    assert peak < 40 * MIB
    assert list(bucket.open_uploads()) == []


def test_parts_that_are_discarded_are_deleted(bucket: Bucket) -> None:
    storage = storage_of_bucket(bucket, SystemClock())
    incoming = storage.files.incoming("a")
    incoming.write(b"x" * 20 * MIB)
    assert len(list(bucket.open_uploads())) == 1
    incoming.discard()
    with pytest.raises(ValueError, match="discarded"):
        incoming.keep("x", "batch", 3600)
    assert (list(bucket.open_uploads()), bucket.keys("")) == ([], [])


def test_a_client_that_leaves_while_a_part_begins_leaves_no_parts(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, begin = Event(), Event(), bucket.begin_parts

    def slow(key: str) -> str:
        begun.set()
        go_on.wait()
        return begin(key)

    monkeypatch.setattr(bucket, "begin_parts", slow)
    incoming = storage_of_bucket(bucket, SystemClock()).files.incoming("a")
    with ThreadPoolExecutor(2) as threads:
        written = threads.submit(incoming.write, b"x" * 20 * MIB)
        begun.wait()
        discarded = threads.submit(incoming.discard)
        go_on.set()
        written.result()
        discarded.result()
    with pytest.raises(ValueError, match="discarded"):
        incoming.write(b"x" * 20 * MIB)
    assert (list(bucket.open_uploads()), bucket.keys("")) == ([], [])


def test_a_gateway_killed_between_parts_leaves_no_file_and_its_parts_are_swept(
    s3_url: str, bucket: Bucket
) -> None:
    settings = S3Settings(bucket=bucket.name, prefix="qlm/", endpoint_url=s3_url).model_dump_json()
    command = [sys.executable, "-c", WRITES_AND_WAITS, settings, json.dumps(CREDENTIALS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as gateway:
        try:
            assert gateway.stdout is not None and gateway.stdout.readline() == b"two parts\n"
        finally:
            gateway.kill()
    storage = storage_of_bucket(bucket, SystemClock())
    assert (storage.files.page("a")[0], storage.files.used_bytes("a"), bucket.keys("")) == ([], 0, [])
    assert len(list(bucket.open_uploads())) == 1
    storage.files.sweep()  # the server of the tests gives all uploads one time of years ago
    assert list(bucket.open_uploads()) == []


def test_content_of_which_nothing_is_known_is_swept(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = storage_of_bucket(bucket, SystemClock())
    kept, lost = add_file(storage, b"x"), add_file(storage, b"y")
    (known,) = (key for key in bucket.keys("") if key.endswith(f"{lost.id}.json"))
    bucket.delete(known)
    storage = storage_of_bucket(bucket, SystemClock())
    storage.files.sweep()
    assert len(bucket.keys("")) == 3
    monkeypatch.setattr(s3_files, "UPLOAD_MAX_S", -2)
    storage.files.sweep()
    assert [key for key in bucket.keys("") if kept.id not in key] == []


def test_what_others_keep_in_the_bucket_stays(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = new_bucket(s3_url, prefix="")
    others = ["app/batches/2026/x", "app/files/file-1.txt", "open/a/b/c", "open/door"]
    for key in others:
        bucket.put(key, b"x")
    upload = bucket.begin_parts("app/files/file-2")
    storage = storage_of_bucket(bucket, SystemClock())
    monkeypatch.setattr(s3_files, "UPLOAD_MAX_S", -2)
    monkeypatch.setattr(s3_batches, "UPLOAD_MAX_S", -2)
    storage.files.sweep()
    storage.batches.sweep(0)
    assert bucket.keys("") == others
    assert [found for _, found, _ in bucket.open_uploads()] == [upload]
    assert (storage.batches.open_places(), storage.batches.newest()) == ({}, [])


def test_a_conditional_write_whose_answer_was_lost_has_won(bucket: Bucket) -> None:
    first = bucket.put_json_if("x", {"owner": "a", "renewals": 0})
    assert first is not None
    assert bucket.put_json_if("x", {"owner": "a", "renewals": 0}) == first  # the client's second try
    assert bucket.put_json_if("x", {"owner": "b", "renewals": 0}) is None
    second = bucket.put_json_if("x", {"owner": "a", "renewals": 1}, first)
    assert second is not None
    assert bucket.put_json_if("x", {"owner": "a", "renewals": 1}, first) == second
    assert bucket.put_json_if("x", {"owner": "b", "renewals": 1}, first) is None
    assert bucket.put_json_if("gone", {"owner": "b"}, first) is None


def test_an_upload_whose_last_answer_was_lost_is_whole(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = bucket._large_client.complete_multipart_upload
    lost: Any = {"Error": {"Code": "NoSuchUpload"}}

    def second_try(**call: Any) -> None:
        complete(**call)
        raise ClientError(lost, "CompleteMultipartUpload")

    def no_parts(**_: Any) -> None:
        raise ClientError(lost, "CompleteMultipartUpload")

    monkeypatch.setattr(bucket._large_client, "complete_multipart_upload", second_try)
    storage = storage_of_bucket(bucket, SystemClock())
    made = add_file(storage, b"x" * 20 * MIB)
    with storage.files.open("a", made.id) as file:
        assert len(file.read()) == 20 * MIB
    monkeypatch.setattr(bucket._large_client, "complete_multipart_upload", no_parts)
    with pytest.raises(StorageUnavailableError, match="has lost the parts of"):
        add_file(storage, b"x" * 20 * MIB)
    assert storage.files.page("a")[0] == [made]


def test_a_claim_is_valid_until_its_time_is_over(bucket: Bucket) -> None:
    first = storage_of_bucket(bucket, SystemClock())
    _, where = add_batch(first, b"x\n", endpoint="/v1/completions")
    claim = first.batches.claim(where)
    assert claim is not None
    assert storage_of_bucket(bucket, SystemClock(), claim_ttl_s=60).batches.claim(where) is None
    late = storage_of_bucket(bucket, SystemClock(), claim_ttl_s=1)
    later = None
    while later is None:  # no gateway renews the first one
        later = late.batches.claim(where)
    assert later.number == 2 and not claim.renew()


def test_a_good_bucket_passes_and_nothing_is_left_in_it(bucket: Bucket) -> None:
    check_bucket(bucket)
    assert bucket.keys("") == []


def test_what_is_wrong_at_start_is_one_sentence_without_secrets(s3_url: str) -> None:
    good = new_bucket(s3_url)
    none = bucket_of(S3Settings(bucket="no-such-bucket", endpoint_url=s3_url), CREDENTIALS)
    with pytest.raises(StorageRefusedError, match="there is no such bucket") as refused:
        check_bucket(none)
    away = f"http://127.0.0.1:{free_port()}"
    unreachable = bucket_of(S3Settings(bucket=good.name, endpoint_url=away, timeout_s=0.2), CREDENTIALS)
    with pytest.raises(StorageUnavailableError, match=f"at {away} cannot be reached") as lost:
        check_bucket(unreachable)
    with pytest.raises(StorageRefusedError) as partial:
        bucket_of(S3Settings(bucket=good.name, endpoint_url=s3_url), {"QLM_S3_ACCESS_KEY_ID": "access"})
    for caught in (refused, lost, partial):
        text = str(caught.value)
        assert "\n" not in text and "hidden-secret" not in text and len(text) < 300


def test_keys_of_strangers_are_refused_in_one_sentence() -> None:
    need(missing())
    with running_s3() as url:
        bucket = new_bucket(url)
        httpx.post(f"{url}/moto-api/reset-auth", content=b"0", timeout=60).raise_for_status()
        with pytest.raises(StorageRefusedError, match="it does not know the access key"):
            check_bucket(bucket)


def test_the_log_has_no_credentials_at_any_level(s3_url: str) -> None:
    settings = S3Settings(bucket=new_bucket(s3_url).name, endpoint_url=s3_url).model_dump_json()
    credentials = json.dumps(CREDENTIALS | {SESSION_TOKEN: "hidden-token"})
    command = [sys.executable, "-c", LOGS_ALL, settings, credentials]
    log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert "the last line" in log and "hidden" not in log


def test_credentials_for_engines_are_not_taken(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of an engine")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    bucket = bucket_of(S3Settings(bucket=new_bucket(s3_url).name, endpoint_url=s3_url), {})
    with pytest.raises(StorageRefusedError, match="no credentials for it; set QLM_S3_ACCESS_KEY_ID"):
        check_bucket(bucket)


async def test_a_server_that_does_not_answer_costs_a_bounded_time(s3_url: str) -> None:
    async with Wire(int(s3_url.rpartition(":")[2])) as wire:
        bucket = new_bucket(s3_url, via=f"http://127.0.0.1:{wire.port}", timeout_s=5.0)
        await asyncio.to_thread(check_bucket, bucket)
        wire.clog()
        async with asyncio.timeout(30):
            with pytest.raises(StorageUnavailableError):
                await asyncio.to_thread(bucket.get, "x")
        wire.unclog()
        await asyncio.to_thread(check_bucket, bucket)


def test_a_process_ends_while_calls_hang() -> None:
    need(missing())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = S3Settings(bucket="any", endpoint_url=url, timeout_s=300).model_dump_json()
        command = [sys.executable, "-c", CALLS_AND_ENDS, settings, json.dumps(CREDENTIALS)]
        subprocess.run(command, check=True, timeout=60)


def test_threads_take_all_calls_and_hand_on_what_they_raise() -> None:
    threads = DaemonThreads(3, "x")
    assert list(threads.map(lambda n: n * n, range(100))) == [n * n for n in range(100)]
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result()
    together = Barrier(3)
    waiting = [threads.submit(together.wait, 10) for _ in range(3)]
    assert sorted(each.result() for each in waiting) == [0, 1, 2]

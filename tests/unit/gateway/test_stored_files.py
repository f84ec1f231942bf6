"""Files of clients: names of any bytes, and nothing left of those that could not be kept."""

import asyncio
import contextlib
import errno
import io
import os
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Timer
from typing import Any, BinaryIO, Final, cast

import pytest
from starlette.requests import Request

from qlm.cli.runtime.clock import SystemClock
from qlm.domain.errors import StorageUnavailableError
from qlm.gateway.api.errors import ApiError
from qlm.gateway.files.disk.storage import storage_in
from qlm.gateway.files.port import Incoming
from qlm.gateway.files.storage import Storage
from qlm.gateway.http.files.files import chunks, lifetime_s
from qlm.gateway.http.files.upload import Upload, receive
from support.full_disk import full_disk
from support.gateway import until
from support.hanging_file import HangingFile
from support.stored_batches import add_batch, add_file, disk_claim, folder_of

DAY_S: Final = 86_400
PURPOSE: Final = b'--xx\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'


def part(header: bytes) -> bytes:
    return PURPOSE + b"--xx\r\nContent-Disposition: form-data; " + header + b"\r\n\r\nx\r\n--xx--\r\n"


async def received(body: bytes, incoming: Incoming) -> Upload:
    async def next_message() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def write(data: bytes) -> None:
        incoming.write(data)

    headers = [(b"content-type", b"multipart/form-data; boundary=xx")]
    scope = {"type": "http", "method": "POST", "path": "/v1/files", "query_string": b"", "headers": headers}
    return await receive(Request(scope, next_message), write, 1000)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return storage_in(tmp_path / "files", SystemClock())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def incoming(storage: Storage) -> Iterator[Incoming]:
    incoming = storage.files.incoming("a")
    yield incoming
    incoming.discard()


def not_broken(error: Exception) -> None:
    raise error


def on_disk(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


async def test_names_may_have_bytes_that_are_no_text(storage: Storage, incoming: Incoming) -> None:
    upload = await received(part(b'name="file"; filename="r\xe9sum\xe9 \xc3\xa9.jsonl"'), incoming)
    assert upload.filename == "r\ufffdsum\ufffd \u00e9.jsonl"
    made = incoming.keep(upload.filename, "batch", 3600)
    assert storage.files.get("a", made.id) == made
    upload = await received(part(b'name="\xff\xfe"'), incoming)
    assert upload.fields == {"purpose": "batch", "\ufffd\ufffd": "x"}


@pytest.mark.parametrize("byte", [b"a", b"\xff"])
async def test_the_error_for_a_form_that_is_none_is_short(incoming: Incoming, byte: bytes) -> None:
    header = b"--xx\r\n" + byte * 5_000 + b"\r\n\r\nx\r\n"
    with pytest.raises(ApiError) as caught:
        await received(header + part(b'name="file"'), incoming)
    assert caught.value.code == "invalid_form"
    caught.value.message.encode()
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("opened_first", [False, True])
async def test_a_file_is_closed_whose_caller_leaves_while_it_is_opened(
    storage: Storage, opened_first: bool
) -> None:
    file, asked, may_open = io.BytesIO(), Event(), Event()

    def opens() -> BinaryIO:
        asked.set()
        assert may_open.wait(20)
        return file

    caller = asyncio.ensure_future(storage.open(opens))
    await until(asked.is_set)
    if opened_first:  # but the caller has not heard of it yet
        may_open.set()
    caller.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        (await caller).close()
    may_open.set()
    await until(lambda: file.closed)


async def test_a_form_has_one_file(incoming: Incoming) -> None:
    twice = part(b'name="file"').removesuffix(b"--xx--\r\n") + part(b'name="file"')
    with pytest.raises(ApiError, match="two files"):
        await received(twice, incoming)


def test_nothing_is_left_of_a_file_that_cannot_be_kept(storage: Storage, root: Path) -> None:
    with pytest.raises(TypeError):
        add_file(storage, b"x" * 1000, name="\udce9")
    assert on_disk(root) == []
    incoming = storage.files.incoming("a")
    incoming.write(b"x" * 1000)
    with full_disk(), pytest.raises(OSError, match="too large"):
        incoming.keep("x", "batch", 3600)
    incoming.discard()
    assert on_disk(root) == []


def test_old_content_of_which_nothing_is_known_is_deleted(storage: Storage, root: Path) -> None:
    made = add_file(storage, b"x" * 1000)
    (known,) = root.glob(f"*/files/{made.id}")
    old, recent = known.with_name("file-old"), known.with_name("file-recent")
    for path in (old, recent):
        path.write_bytes(b"x")
    for path in (known, old):
        os.utime(path, (known.stat().st_atime, known.stat().st_mtime - 2 * DAY_S))
    storage.files.sweep()
    assert (known.exists(), old.exists(), recent.exists()) == (True, False, True)


@pytest.mark.parametrize("room_bytes", [0, 150], ids=["not-opened", "opened"])
def test_nothing_is_left_of_a_batch_that_cannot_be_accepted(
    storage: Storage, root: Path, room_bytes: int
) -> None:
    spec, _ = add_batch(storage, b"x", endpoint="/v1/completions")
    before = set(root.rglob("*"))
    sizes = sorted(path.stat().st_size for path in before if path.is_file())
    assert sizes[1] < 150 < sizes[-1], "its place fits, and what was asked for does not"
    with full_disk(room_bytes), pytest.raises(OSError, match="too large"):
        storage.batches.add(replace(spec, id=storage.batches.new_id()))
    assert set(root.rglob("*")) == before
    assert storage.batches.count_open("a") == 1


def test_a_batch_whose_gateway_died_before_it_was_accepted_is_not_open_and_is_deleted(
    storage: Storage,
) -> None:
    old, recent = (add_batch(storage, b"x", endpoint="/v1/completions")[1] for _ in range(2))
    for folder in (folder_of(storage, each) for each in (old, recent)):
        (folder / "batch.json").unlink()
    changed_s = folder_of(storage, recent).stat().st_mtime
    os.utime(folder_of(storage, old), (changed_s, changed_s - 2 * DAY_S))
    assert storage.batches.count_open("a") == 0
    storage.batches.sweep(3600)
    assert list(storage.batches.open_places().values()) == [recent]
    assert (folder_of(storage, old).exists(), folder_of(storage, recent).exists()) == (False, True)


def test_a_line_that_does_not_fit_leaves_no_part_of_it(storage: Storage) -> None:
    claim = disk_claim(storage, add_batch(storage, b"x", endpoint="/v1/completions")[1])
    assert claim is not None
    with contextlib.closing(claim):
        claim.begin()
        claim.write("output", b"first\n")
        with full_disk(room_bytes=10), pytest.raises(OSError, match="too large"):
            claim.write("output", b"second\n")
        claim.write("output", b"third\n")
        assert claim.path("output").read_bytes() == b"first\nthird\n"


def test_results_that_a_thread_opens_after_the_end_of_a_run_are_closed(storage: Storage) -> None:
    claim = disk_claim(storage, add_batch(storage, b"x", endpoint="/v1/completions")[1])
    assert claim is not None
    claim.close()
    claim.begin()
    assert [file.closed for file in claim.parts.values()] == [True, True]


@pytest.mark.parametrize(
    ("number", "raised"),
    [
        (errno.ENOSPC, StorageUnavailableError),
        (errno.EIO, StorageUnavailableError),
        (errno.EBADF, OSError),
        (errno.EEXIST, FileExistsError),
    ],
)
async def test_what_no_repair_of_the_disk_would_mend_is_no_outage(
    storage: Storage, number: int, raised: type[Exception]
) -> None:
    def fail() -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(raised):
        await storage.call(fail)
    assert storage.outage.lasts == (raised is StorageUnavailableError)


async def test_a_client_that_leaves_while_a_read_hangs_holds_up_no_other(storage: Storage) -> None:
    file = HangingFile()
    late = Timer(5, file.go.set)
    late.start()
    content = chunks(storage, io.BufferedReader(file), not_broken)
    assert isinstance(content, AsyncGenerator)
    reading = asyncio.create_task(anext(content))
    await asyncio.to_thread(file.reading.wait)
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading
    held_up = file.go.is_set()
    file.go.set()
    late.cancel()
    assert not held_up
    await until(lambda: file.closed)


@pytest.mark.parametrize("error", [ValueError("closed"), LookupError("key"), RuntimeError("no thread")])
async def test_a_bug_of_the_storage_is_no_mistake_in_the_form(error: Exception) -> None:
    class Broken:
        def write(self, data: bytes) -> None:
            raise error

    with pytest.raises(type(error)) as raised:
        await received(part(b'name="file"; filename="f"'), cast(Incoming, Broken()))
    assert raised.value is error


@pytest.mark.parametrize("seconds", ["7200", 7200, "0007200"])
def test_a_file_may_name_its_lifetime(seconds: object) -> None:
    given = {"anchor": "created_at", "seconds": seconds}
    assert lifetime_s(given, DAY_S, "expires_after[{}]") == 7200


@pytest.mark.parametrize(
    "seconds",
    [
        "3599",
        DAY_S + 1,
        "0000000072009999999999",
        "000000007200" + "9" * 5000,
        10**18,
        "-7200",
        "7200.0",
        True,
    ],
)
def test_a_lifetime_out_of_bounds_is_refused_however_long_its_digits(seconds: object) -> None:
    with pytest.raises(ApiError) as caught:
        lifetime_s({"anchor": "created_at", "seconds": seconds}, DAY_S, "expires_after[{}]")
    assert (caught.value.status, caught.value.param) == (400, "expires_after[seconds]")
    assert f"expected seconds from 3600 to {DAY_S}" in caught.value.message

"""Files of clients: names of any bytes, and nothing left of those that could not be kept."""

import os
from pathlib import Path
from typing import Any, Final

import pytest
from starlette.requests import Request

from qlm.cli.runtime.clock import SystemClock
from qlm.gateway.api.errors import ApiError
from qlm.gateway.files.storage import Storage, storage_in
from qlm.gateway.http.files.upload import Upload, receive
from support.full_disk import full_disk

DAY_S: Final = 86_400
PURPOSE: Final = b'--xx\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'


def part(header: bytes) -> bytes:
    return PURPOSE + b"--xx\r\nContent-Disposition: form-data; " + header + b"\r\n\r\nx\r\n--xx--\r\n"


async def received(body: bytes, path: Path) -> Upload:
    async def next_message() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", b"multipart/form-data; boundary=xx")]
    scope = {"type": "http", "method": "POST", "path": "/v1/files", "query_string": b"", "headers": headers}
    return await receive(Request(scope, next_message), path, 1000)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return storage_in(tmp_path / "files", SystemClock())


def content_of(storage: Storage) -> Path:
    path = storage.files.upload_path()
    path.write_bytes(b"x" * 1000)
    return path


def on_disk(storage: Storage) -> list[Path]:
    return [path for path in storage.files.root.rglob("*") if path.is_file()]


async def test_names_may_have_bytes_that_are_no_text(storage: Storage) -> None:
    path = storage.files.upload_path()
    upload = await received(part(b'name="file"; filename="r\xe9sum\xe9 \xc3\xa9.jsonl"'), path)
    assert upload.filename == "r\ufffdsum\ufffd \u00e9.jsonl"
    made = storage.files.add("a", path, upload.filename, "batch", 3600)
    assert storage.files.get("a", made.id) == made
    upload = await received(part(b'name="\xff\xfe"'), path)
    assert upload.fields == {"purpose": "batch", "\ufffd\ufffd": "x"}


@pytest.mark.parametrize("byte", [b"a", b"\xff"])
async def test_the_error_for_a_form_that_is_none_is_short(tmp_path: Path, byte: bytes) -> None:
    header = b"--xx\r\n" + byte * 5_000 + b"\r\n\r\nx\r\n"
    with pytest.raises(ApiError) as caught:
        await received(header + part(b'name="file"'), tmp_path / "content")
    assert caught.value.code == "invalid_form"
    caught.value.message.encode()
    assert len(caught.value.message) < 400


def test_nothing_is_left_of_a_file_that_cannot_be_kept(storage: Storage) -> None:
    with pytest.raises(TypeError):
        storage.files.add("a", content_of(storage), "\udce9", "batch", 3600)
    assert on_disk(storage) == []
    content = content_of(storage)
    with full_disk(), pytest.raises(OSError, match="too large"):
        storage.files.add("a", content, "x", "batch", 3600)
    assert on_disk(storage) == []


def test_old_content_of_which_nothing_is_known_is_deleted(storage: Storage) -> None:
    made = storage.files.add("a", content_of(storage), "x", "batch", 3600)
    known = storage.files.content("a", made.id)
    old, recent = known.with_name("file-old"), known.with_name("file-recent")
    for path in (old, recent):
        path.write_bytes(b"x")
    for path in (known, old):
        os.utime(path, (known.stat().st_atime, known.stat().st_mtime - 2 * DAY_S))
    storage.files.sweep()
    assert (known.exists(), old.exists(), recent.exists()) == (True, False, True)

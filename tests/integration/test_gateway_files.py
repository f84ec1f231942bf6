"""Files over real HTTP, as OpenAI's SDK uses them."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from openai import NotFoundError

from qlm.domain.shell import outage
from support.file_world import LIMITS, World, running_world
from support.full_disk import full_disk


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running_world(tmp_path) as running:
        yield running


async def test_a_full_disk_is_an_outage_and_leaves_nothing(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "QUIET_S", 0.0)
    form: dict[str, Any] = {"files": {"file": ("in.jsonl", b"x" * 50_000)}, "data": {"purpose": "batch"}}
    with full_disk():
        refused = [await world.http.post("/v1/files", **form) for _ in range(2)]
    for answer in refused:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_unavailable")
        assert "retry-after" in answer.headers
    assert not list(world.root.glob("uploads/*"))
    assert (await world.http.post("/v1/files", **form)).status_code == 200
    said = [each.getMessage().partition(":")[0] for each in caplog.records if each.levelname == "WARNING"]
    assert said[0] == "the storage of files is away"
    assert said[-1] == "the storage of files is back after 0 s"
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


async def test_a_file_is_kept_listed_read_and_deleted(world: World) -> None:
    content = os.urandom(50_000)
    made = await world.client.files.create(
        file=("à b.jsonl", content), purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200}
    )
    assert (made.filename, made.bytes, made.purpose) == ("à b.jsonl", 50_000, "batch")
    assert made.expires_at == made.created_at + 7200
    assert (await world.client.files.retrieve(made.id)) == made
    assert (await world.client.files.content(made.id)).content == content
    assert [each.id async for each in await world.client.files.list()] == [made.id]
    assert [each.id async for each in await world.client.files.list(purpose="batch_output")] == []
    assert (await world.client.files.delete(made.id)).deleted
    for call in (world.client.files.retrieve, world.client.files.content, world.client.files.delete):
        with pytest.raises(NotFoundError):
            await call(made.id)
    assert not list(world.root.glob("*/files/*"))
    assert not list(world.root.glob("uploads/*"))


async def test_lists_come_in_pages(world: World) -> None:
    ids = [await world.upload([b"x\n"]) for _ in range(3)]
    listed = [each.id async for each in await world.client.files.list(limit=1)]
    assert sorted(listed) == sorted(ids)
    page = (await world.http.get("/v1/files", params={"limit": 2, "after": listed[0]})).json()
    assert ([each["id"] for each in page["data"]], page["has_more"]) == (listed[1:], False)
    in_turn = [each.id async for each in await world.client.files.list(limit=1, order="asc")]
    assert in_turn == listed[::-1]
    for wrong in ({"limit": "0"}, {"after": "file-none"}, {"order": "up"}):
        assert (await world.http.get("/v1/files", params=wrong)).status_code == 400


async def test_an_expired_file_is_gone(world: World) -> None:
    id = await world.upload([b"x\n"])
    world.clock.extra_s = LIMITS.kept_s + 1
    with pytest.raises(NotFoundError):
        await world.client.files.retrieve(id)
    await asyncio.to_thread(world.storage.files.sweep)
    assert not list(world.root.glob("*/files/*"))


async def test_a_file_that_is_too_large_or_one_too_many_is_refused(world: World) -> None:
    large = {"file": ("a", b"x" * (LIMITS.file_bytes_max + 1))}
    answer = await world.http.post("/v1/files", files=large, data={"purpose": "batch"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "file_too_large")
    for _ in range(2):
        await world.upload([b"x" * LIMITS.file_bytes_max])
    answer = await world.http.post("/v1/files", files={"file": b"x"}, data={"purpose": "batch"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "storage_full")
    assert not list(world.root.glob("uploads/*"))


FORMS: Final[Sequence[tuple[dict[str, Any], str | None]]] = [
    ({"files": {"file": b"x"}}, "purpose"),
    ({"files": {"file": b"x"}, "data": {"purpose": "fine-tune"}}, "purpose"),
    ({"files": {"other": b"x"}, "data": {"purpose": "batch"}}, "other"),
    ({"files": {"x": (None, "y")}, "data": {"purpose": "batch"}}, "x"),
    ({"files": {"purpose": (None, "batch")}}, "file"),
    (
        {"files": {"file": b"x"}, "data": {"purpose": "batch", "expires_after[anchor]": "now"}},
        "expires_after[anchor]",
    ),
    (
        {
            "files": {"file": b"x"},
            "data": {
                "purpose": "batch",
                "expires_after[anchor]": "created_at",
                "expires_after[seconds]": "3",
            },
        },
        "expires_after[seconds]",
    ),
    ({"content": b"", "headers": {"content-type": "multipart/form-data"}}, None),
    ({"content": b"--x\r\n\r\n", "headers": {"content-type": "multipart/form-data; boundary=x"}}, None),
    ({"content": b"nothing", "headers": {"content-type": "multipart/form-data; boundary=x"}}, None),
    (
        {
            "content": b'--x\r\nContent-Disposition: form-data; name="a\x00b"\r\n\r\n1\r\n--x--\r\n',
            "headers": {"content-type": "multipart/form-data; boundary=x"},
        },
        None,
    ),
]


async def test_a_form_that_is_none_is_refused(world: World) -> None:
    for given, param in FORMS:
        answer = await world.http.post("/v1/files", **given)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert not list(world.root.glob("uploads/*"))


async def test_a_page_cannot_upload_without_being_asked(world: World) -> None:
    answer = await world.http.post(
        "/v1/files", files={"file": b"x"}, headers={"origin": "http://evil.example"}
    )
    assert answer.status_code == 403
    answer = await world.http.post("/v1/files", json={})
    assert answer.status_code == 415

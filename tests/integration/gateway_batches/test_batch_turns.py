"""Batches at one gateway take turns, and those that rest are seldom read."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import orjson
import pytest

from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.translate import KEY_TENANT
from qlm.gateway.batches import runner
from qlm.gateway.batches.line_routes import PreparedLine
from qlm.gateway.batches.runner import batches_running
from qlm.gateway.files.records import Batch
from qlm.gateway.files.storage import Storage
from qlm.gateway.sessions.gateway import Gateway
from support.batch_gateway import (
    CONTENT,
    ENDPOINT,
    batch,
    ended,
    fast,
    open_batch,
    refuse,
)
from support.gateway import until
from support.opened_files import opened_below
from support.stored_batches import add_batch, folder_of


async def never(_: Gateway, __: dict[str, Any], headers: Mapping[str, str]) -> PreparedLine:
    """Refuse the lines of tenant b, and keep those of others waiting."""
    if headers[KEY_TENANT] != "b":
        await asyncio.Event().wait()
    raise ApiError(status=400, message="refused")


async def test_a_tenant_with_many_batches_yields_to_one_with_few(
    gateway: Gateway, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "BATCHES_MAX", 2)
    many = [open_batch(storage) for _ in range(2)]
    gateway = replace(gateway, storage=fast(storage, rest_s=0.01))
    async with batches_running(gateway, {ENDPOINT: never}):
        await until(lambda: all(batch(storage, each).state.started_s for each in many))
        few = folder_of(storage, add_batch(storage, CONTENT, endpoint=ENDPOINT, tenant="b")[1])
        assert await ended(storage, few) == ["completed"]
        await until(lambda: all(opened_below(each) for each in many))  # both run again


async def test_a_batch_that_only_ends_waits_for_no_other(
    gateway: Gateway, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "BATCHES_MAX", 1)
    first = open_batch(storage)
    gateway = replace(gateway, storage=fast(storage, rest_s=0.01))
    async with batches_running(gateway, {ENDPOINT: never}):
        await until(lambda: batch(storage, first).state.started_s)
        cancelled, over = open_batch(storage), open_batch(storage)
        storage.batches.cancel("a", cancelled.name)
        spec = orjson.loads((over / "batch.json").read_bytes())
        (over / "batch.json").write_bytes(orjson.dumps(spec | {"expires_s": 1}))
        assert await ended(storage, cancelled, over) == ["cancelled", "expired"]
        assert not batch(storage, first).ended


async def test_a_batch_that_rests_is_seldom_read(
    gateway: Gateway, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        storage.batches.pause("a", open_batch(storage).name)
    calls = Counter[str]()

    def counted(name: str) -> Callable[..., Any]:
        call = getattr(storage.batches, name)

        def count(*args: Any) -> Any:
            calls[name] += 1
            return call(*args)

        return count

    for name in ("open_places", "read"):
        monkeypatch.setattr(storage.batches, name, counted(name))
    async with batches_running(replace(gateway, storage=fast(storage, rest_s=60)), {ENDPOINT: refuse}):
        await until(lambda: calls["open_places"] > 10)
    assert calls["read"] == 3


async def test_of_many_batches_that_rest_each_look_reads_a_few_in_turns(
    gateway: Gateway, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "REREADS_MAX", 2)
    for _ in range(5):
        storage.batches.pause("a", open_batch(storage).name)
    open_places, read, looks = storage.batches.open_places, storage.batches.read, list[list[str]]()

    def look() -> Mapping[str, str]:
        looks.append([])
        return open_places()

    def note_read(place: str) -> Batch | None:
        looks[-1].append(place)
        return read(place)

    monkeypatch.setattr(storage.batches, "sweep", lambda kept_s: None)  # it lists them, too
    monkeypatch.setattr(storage.batches, "open_places", look)
    monkeypatch.setattr(storage.batches, "read", note_read)
    async with batches_running(replace(gateway, storage=fast(storage, rest_s=0)), {ENDPOINT: refuse}):
        await until(lambda: len(looks) > 6)
    assert [len(places) for places in looks[:6]] == [5, 2, 2, 2, 2, 2]
    for first in range(1, 4):  # those of one look come back in any order
        assert {*chain.from_iterable(looks[first : first + 3])} == {*looks[0]}

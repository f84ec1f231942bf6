"""Batches at one gateway: the slots of their lines, claims, and batches that cannot be read."""

import asyncio
import contextlib
import gc
import io
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import orjson
import pytest

from qlm.domain.errors import StorageUnavailableError
from qlm.domain.shell import outage
from qlm.domain.shell.tasks import REPEAT_S, Tasks, end_tasks
from qlm.gateway.api.errors import ApiError
from qlm.gateway.batches import batch_run, line_run
from qlm.gateway.batches.batch_run import BatchPausedError, BatchRun
from qlm.gateway.batches.line_routes import PreparedLine, PrepareLine
from qlm.gateway.batches.runner import BatchRunner, batches_running
from qlm.gateway.files.disk.claim import DiskClaim
from qlm.gateway.files.storage import Storage
from qlm.gateway.sessions.gateway import Gateway
from support.batch_gateway import (
    CONTENT,
    ENDPOINT,
    batch,
    ended,
    ids,
    open_batch,
    place_of,
    refuse,
)
from support.gateway import SystemClock, until
from support.hanging_file import HangingFile
from support.opened_files import opened_below
from support.stored_batches import add_batch, disk_claim, folder_of


@contextlib.asynccontextmanager
async def waiting_for_a_slot(
    gateway: Gateway, storage: Storage, slots: asyncio.Semaphore, prepare: PrepareLine = refuse
) -> AsyncIterator[tuple[Path, asyncio.Task[None]]]:
    """Run a batch until one of its lines waits for a slot."""
    folder = open_batch(storage)
    claim = storage.batches.claim(place_of(folder))
    assert claim is not None
    parts = gateway, storage, slots, prepare
    run = asyncio.create_task(BatchRun(*parts, batch(storage, folder), claim).run())
    try:
        await until(lambda: bool(slots._waiters))
        yield folder, run
    finally:
        claim.release()


async def test_a_slot_that_comes_while_its_batch_is_left_is_another_ones(
    gateway: Gateway, storage: Storage
) -> None:
    slots = asyncio.Semaphore(1)
    await slots.acquire()
    async with waiting_for_a_slot(gateway, storage, slots) as (_, run):
        slots.release()
        run.cancel()
        await asyncio.wait([run])
        assert run.cancelled() and not slots.locked()


async def test_a_slot_that_comes_while_its_batch_stops_is_another_ones(
    gateway: Gateway, storage: Storage
) -> None:
    slots = asyncio.Semaphore(1)
    await slots.acquire()
    async with waiting_for_a_slot(gateway, storage, slots) as (folder, run):
        storage.batches.cancel("a", folder.name)
        (errors,) = folder.glob("errors-*")
        async with asyncio.timeout(60):
            while not errors.stat().st_size:  # noqa: ASYNC110 (at once when the first line is written)
                await asyncio.sleep(0)
        slots.release()
        await run
        assert not slots.locked()
        assert batch(storage, folder).status == "cancelled"


async def test_a_paused_batch_without_lines_in_work_is_left(gateway: Gateway, storage: Storage) -> None:
    slots = asyncio.Semaphore(0)
    async with waiting_for_a_slot(gateway, storage, slots) as (folder, run):
        storage.batches.pause("a", folder.name)
        with pytest.raises(BatchPausedError):
            await run
    await until(lambda: opened_below(folder) == [])
    slots.release()
    assert not slots.locked()


class CountedClock(SystemClock):
    """A clock that counts how often it is read."""

    def __init__(self) -> None:
        self.count = 0

    def now_ns(self) -> int:
        self.count += 1
        return super().now_ns()


async def test_lines_of_a_paused_batch_that_are_in_work_end(gateway: Gateway, storage: Storage) -> None:
    clock, let_end = CountedClock(), asyncio.Event()

    async def refuse_late(_: Gateway, __: dict[str, Any], ___: Mapping[str, str]) -> PreparedLine:
        await let_end.wait()
        raise ApiError(status=400, message="refused")

    slots = asyncio.Semaphore(1)
    gateway = replace(gateway, clock=clock)
    async with waiting_for_a_slot(gateway, storage, slots, refuse_late) as (folder, run):
        storage.batches.pause("a", folder.name)
        seen = clock.count + 2  # each look at the batch reads it once
        await until(lambda: clock.count >= seen)
        assert not run.done()
        let_end.set()
        with pytest.raises(BatchPausedError):
            await run
    assert batch(storage, folder).state.failed == 1
    storage.batches.resume("a", folder.name)
    async with batches_running(gateway, {ENDPOINT: refuse}):
        assert await ended(storage, folder) == ["completed"]
    assert batch(storage, folder).state.failed == 3


async def test_a_paused_batch_is_left_alone_until_it_is_resumed_or_its_window_is_over(
    gateway: Gateway, storage: Storage
) -> None:
    paused, over, cancelled, last = folders = [open_batch(storage, id) for id in ids(storage, 4)]
    for folder in (paused, over, cancelled):
        storage.batches.pause("a", folder.name)
    storage.batches.cancel("a", cancelled.name)
    spec = orjson.loads((over / "batch.json").read_bytes())
    (over / "batch.json").write_bytes(orjson.dumps(spec | {"expires_s": 1}))
    async with batches_running(gateway, {ENDPOINT: refuse}):
        assert await ended(storage, over, cancelled, last) == ["expired", "cancelled", "completed"]
        assert list(paused.glob("claim-*")) == []
        storage.batches.resume("a", paused.name)
        assert await ended(storage, paused) == ["completed"]
        await until(lambda: not any(map(opened_below, folders)))


async def test_a_batch_that_cannot_be_read_keeps_no_other_waiting(gateway: Gateway, storage: Storage) -> None:
    bad, good = (open_batch(storage, id) for id in ids(storage, 2))
    (bad / "batch.json").write_bytes(b"{}")
    async with batches_running(gateway, {ENDPOINT: refuse}):
        assert await ended(storage, good) == ["completed"]
        await until(lambda: opened_below(bad) == [])
    assert list(bad.glob("claim-*")) == []


async def test_results_are_closed_if_the_gateway_stops_just_as_a_batch_ends(
    gateway: Gateway, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stopped_meanwhile(tasks: Tasks) -> None:
        await end_tasks(tasks)
        raise asyncio.CancelledError

    folder = open_batch(storage)
    claim = disk_claim(storage, place_of(folder))
    assert claim is not None
    run = BatchRun(gateway, storage, asyncio.Semaphore(1), refuse, batch(storage, folder), claim)
    monkeypatch.setattr(batch_run, "end_tasks", stopped_meanwhile)
    with pytest.raises(asyncio.CancelledError):
        await run.run()
    assert claim.parts
    assert all(file.closed for file in claim.parts.values())
    claim.release()


async def test_a_bug_in_a_line_costs_that_line_alone(
    gateway: Gateway, storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(line_run, "PAUSE_MAX_S", 0.01)
    failures, prompts = 0, [b"x", b"bug", b"x"]

    async def prepare(gateway: Gateway, body: dict[str, Any], headers: Mapping[str, str]) -> PreparedLine:
        nonlocal failures
        if body["prompt"] == "bug":
            failures += 1
            raise ZeroDivisionError
        return await refuse(gateway, body, headers)

    lines = (
        line.replace(b'"x"', b'"%s"' % prompt)
        for line, prompt in zip(CONTENT.splitlines(keepends=True), prompts, strict=True)
    )
    folder = folder_of(storage, add_batch(storage, b"".join(lines), endpoint=ENDPOINT)[1])
    async with batches_running(gateway, {ENDPOINT: prepare}):
        assert await ended(storage, folder) == ["completed"]
    assert failures == line_run.TRIES_MAX
    error_file_id = batch(storage, folder).state.error_file_id
    assert error_file_id is not None
    with storage.files.open("a", error_file_id) as errors:
        lines_answered = [orjson.loads(line) for line in errors]
    statuses = {each["custom_id"]: each["response"]["status_code"] for each in lines_answered}
    assert statuses == {"0": 400, "1": 500, "2": 400}
    assert [r.exc_info is not None for r in caplog.records if "ZeroDivisionError" in r.getMessage()] == [True]


@pytest.mark.parametrize("stopping", [False, True])
async def test_a_claim_that_cannot_be_given_back_is_noted_and_runs_out(
    gateway: Gateway,
    storage: Storage,
    stopping: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fails = threading.Event()  # while the batches run, or while their runner stops

    def fail(claim: DiskClaim) -> None:
        assert fails.wait(10)
        claim.lock.release()
        raise RuntimeError("no such device")

    monkeypatch.setattr(DiskClaim, "release", fail)
    folders = [open_batch(storage) for _ in range(2)]
    async with batches_running(gateway, {ENDPOINT: refuse}):
        if not stopping:
            fails.set()
        assert await ended(storage, *folders) == ["completed"] * 2
        # Longer than a task is given to end before it is cancelled again.
        asyncio.get_running_loop().call_later(2 * REPEAT_S, fails.set)
    gc.collect()  # a task whose failure nobody took is reported then
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 1
    assert "is not given back: RuntimeError('no such device')" in said[0]


async def test_an_outage_of_the_storage_is_two_lines(
    gateway: Gateway, storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outage, "QUIET_S", 0.0)
    away, looks = True, 0

    def reached(call: Callable[..., Any], *args: Any) -> Any:
        nonlocal looks
        looks += 1
        if away:
            raise StorageUnavailableError("the bucket cannot be reached")
        return call(*args)

    for part, name in (
        (storage.batches, "open_places"),
        (storage.batches, "sweep"),
        (storage.files, "sweep"),
    ):
        monkeypatch.setattr(part, name, partial(reached, getattr(part, name)))
    fast = replace(storage, pace=replace(storage.pace, scan_s=0.01))
    running = asyncio.create_task(BatchRunner(gateway, fast, {ENDPOINT: refuse}).run())
    await until(lambda: looks > 5)
    away = False
    await until(lambda: len(caplog.records) > 1)
    await end_tasks([running])
    assert caplog.messages == [
        "the storage of files is away: the bucket cannot be reached",
        "the storage of files is back after 0 s",
    ]


async def test_a_stop_while_a_read_of_the_input_hangs_holds_up_nothing(
    gateway: Gateway, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_batch(storage)
    file, first = HangingFile(), [io.BytesIO(CONTENT)]  # the check of the input, then its run
    monkeypatch.setattr(DiskClaim, "input", lambda _: first.pop() if first else io.BufferedReader(file))
    late = Timer(5, file.go.set)
    late.start()
    async with batches_running(gateway, {ENDPOINT: refuse}):
        await until(file.reading.is_set)
    held_up = file.go.is_set()
    file.go.set()
    late.cancel()
    assert not held_up
    await until(lambda: file.closed)


async def test_a_deletion_that_fails_is_neither_tried_at_each_look_nor_keeps_another_from_its_turn(
    gateway: Gateway, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept, looks = list[str](), 0

    def fail() -> None:
        swept.append("files")
        raise StorageUnavailableError("it does not allow it")

    def look() -> dict[str, str]:
        nonlocal looks
        looks += 1
        return {}

    monkeypatch.setattr(storage.files, "sweep", fail)
    monkeypatch.setattr(storage.batches, "sweep", lambda kept_s: swept.append("batches"))
    monkeypatch.setattr(storage.batches, "open_places", look)
    fast = replace(storage, pace=replace(storage.pace, scan_s=0.01, sweep_s=60))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(BatchRunner(gateway, fast, {ENDPOINT: refuse}).run())
        await until(lambda: looks > 10)
        task.cancel()
    assert swept == ["files", "batches"]


async def test_a_disk_that_hangs_keeps_no_other_work_of_the_process_waiting(storage: Storage) -> None:
    go, begun, threads = threading.Event(), list[None](), ThreadPoolExecutor(2)
    asyncio.get_running_loop().set_default_executor(threads)

    def hang() -> None:
        begun.append(None)
        go.wait(60)

    calls = [asyncio.create_task(storage.call(hang)) for _ in range(10)]
    try:
        await until(lambda: len(begun) >= 2)
        async with asyncio.timeout(10):
            await asyncio.to_thread(lambda: None)
    finally:
        go.set()
        await asyncio.gather(*calls)

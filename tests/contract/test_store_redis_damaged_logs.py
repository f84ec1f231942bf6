"""Output logs in Redis that are damaged, or that another version wrote."""

from dataclasses import replace

import pytest

from contract.redis_stores import entry_of, opened_client, opened_store, prefixes
from contract.suites.store.values import (
    GATEWAY,
    A,
    B,
    alive,
    each_slice,
    enqueued,
    leased,
    listening,
    metadata,
    until,
)
from qlm.domain.lease import Epoch
from qlm.domain.lease_answer import Granted
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, OutputSlice
from qlm.domain.view import RequestFilter
from qlm.store.redis.store import RedisStore
from support.redis import RedisServer


async def _answered(store: RedisStore, n: int, *token_ids: int) -> None:
    await enqueued(store, n)
    epoch = await leased(store, n, A)
    await store.append([entry_of(n, epoch, 0, *token_ids[:1])])
    await store.append([replace(entry_of(n, epoch, 1, *token_ids[1:]), outcome=Outcome.STOP)])


@pytest.mark.parametrize("left", [b"", b"\x01\0\0\0", b"\x02\0\0\0\x03\0\0\0", b"\x01\0\0\0" * 4])
async def test_an_answer_with_a_hole_is_lost_and_never_an_answer(
    redis_server: RedisServer, left: bytes
) -> None:
    """An evicted log, one without its end, one without its beginning, and one with more than was recorded."""
    prefix = next(prefixes)
    async with opened_client(redis_server) as client, opened_store(redis_server, prefix=prefix) as store:
        await alive(store, A)
        await _answered(store, 1, 1, 2, 3)
        whole = await store.read_output(metadata(1).id, 0)
        assert whole == OutputSlice(metadata(1).id, 0, (1, 2, 3), Outcome.STOP)
        await client.delete(f"{prefix}log:r0001")
        if left:
            await client.set(f"{prefix}log:r0001", left)
        for offset in (0, 1, 3):
            read = await store.read_output(metadata(1).id, offset)
            assert read is not None
            assert (read.offset, read.token_ids, read.outcome) == (0, (), Outcome.OUTPUT_LOST)
            assert read.detail == f"its output log has {len(left) // 4} tokens, 3 were recorded"
        record = await store.record(metadata(1).id)
        assert record is not None
        assert (record.outcome, record.output_tokens) == (Outcome.OUTPUT_LOST, 0)
        assert [each.outcome for each in await store.records(RequestFilter())] == [Outcome.OUTPUT_LOST]
        assert (await store.enqueue(metadata(1))).record.outcome is Outcome.OUTPUT_LOST


@pytest.mark.parametrize("left", [b"", b"\x02\0\0\0"])
async def test_the_holder_writes_a_damaged_log_again(redis_server: RedisServer, left: bytes) -> None:
    """Its append finds the hole; a watcher gets the log from the start, and can compare."""
    prefix = next(prefixes)
    async with opened_client(redis_server) as client, opened_store(redis_server, prefix=prefix) as store:
        await alive(store, A)
        await enqueued(store, 1, watcher=GATEWAY)
        epoch = await leased(store, 1, A)
        assert await store.append([entry_of(1, epoch, 0, 1), entry_of(1, epoch, 1, 2)]) == ["taken", "taken"]
        await client.set(f"{prefix}log:r0001", left)
        assert await store.append([entry_of(1, epoch, len(left) // 4, 3)]) == [AppendResult.GAP]
        assert await store.append([entry_of(1, epoch, 2, 3)]) == [AppendResult.GAP]
        assert await store.read_output(metadata(1).id, 0) == OutputSlice(metadata(1).id, 0)
        async with listening(each_slice(store.outputs(GATEWAY))) as received:
            again = await store.reregister(metadata(1), A, (1, 2, 3))
            assert isinstance(again, Granted) and again.output == (1, 2, 3)
            last = replace(entry_of(1, again.lease.epoch, 3), outcome=Outcome.STOP)
            assert await store.append([last]) == [AppendResult.TAKEN]

            async def ended() -> bool:
                return len(received) == 2

            await until(ended, "both slices")
            assert received[0] == OutputSlice(metadata(1).id, 0, (1, 2, 3))
        whole = await store.read_output(metadata(1).id, 0)
        assert whole == OutputSlice(metadata(1).id, 0, (1, 2, 3), Outcome.STOP)


async def test_who_takes_over_a_request_with_a_damaged_log_generates_it_from_the_start(
    redis_server: RedisServer,
) -> None:
    prefix = next(prefixes)
    async with opened_client(redis_server) as client, opened_store(redis_server, prefix=prefix) as store:
        await alive(store, A, B)
        epoch = await leased(store, 1, A)
        await store.append([entry_of(1, epoch, 0, 1, 2)])
        await store.release(metadata(1).id, epoch, "drained")
        await client.set(f"{prefix}log:r0001", b"\x02\0\0\0")
        granted = await store.lease(metadata(1), B, None)
        assert isinstance(granted, Granted) and granted.output == ()
        assert await store.append([entry_of(1, granted.lease.epoch, 0, 1, 2)]) == [AppendResult.TAKEN]


async def test_tokens_of_an_agent_of_an_earlier_version_are_kept(redis_server: RedisServer) -> None:
    """Its scripts count the lease and extend the log, and record no number of tokens."""
    prefix = next(prefixes)
    async with opened_client(redis_server) as client, opened_store(redis_server, prefix=prefix) as store:
        await alive(store, A, B)
        epoch = await leased(store, 1, A)
        await store.append([entry_of(1, epoch, 0, 1, 2)])
        await store.release(metadata(1).id, epoch, "drained")
        await client.hincrby(f"{prefix}request:r0001", "n", 1)
        await client.append(f"{prefix}log:r0001", b"\x03\0\0\0")
        assert await store.read_output(metadata(1).id, 0) == OutputSlice(metadata(1).id, 0, (1, 2, 3))
        granted = await store.lease(metadata(1), B, None)
        assert isinstance(granted, Granted) and granted.output == (1, 2, 3)
        last = replace(entry_of(1, granted.lease.epoch, 3, 4), outcome=Outcome.STOP)
        assert await store.append([last]) == [AppendResult.TAKEN]
        whole = await store.read_output(metadata(1).id, 0)
        assert whole == OutputSlice(metadata(1).id, 0, (1, 2, 3, 4), Outcome.STOP)


async def test_a_log_whose_request_was_forgotten_is_not_continued_by_the_next_with_its_id(
    redis_server: RedisServer,
) -> None:
    prefix = next(prefixes)
    async with opened_client(redis_server) as client, opened_store(redis_server, prefix=prefix) as store:
        await alive(store, A)
        epoch = await leased(store, 1, A)
        await store.append([entry_of(1, epoch, 0, 7, 8)])
        await client.delete(f"{prefix}request:r0001")
        granted = await store.lease(metadata(1), A, None)
        assert isinstance(granted, Granted) and granted.output == ()
        assert granted.lease.epoch > epoch
        assert await store.append([entry_of(1, epoch, 0, 7, 8)]) == [AppendResult.UNKNOWN]


async def test_a_row_of_an_earlier_version_has_the_incarnation_of_the_store(
    redis_server: RedisServer,
) -> None:
    """So its holder, which may be of that version, keeps its lease in a rolling update."""
    prefix = next(prefixes)
    async with opened_client(redis_server) as client, opened_store(redis_server, prefix=prefix) as store:
        await alive(store, A)
        await leased(store, 1, A)
        await client.hdel(f"{prefix}request:r0001", "incarnation")
        record = await store.record(metadata(1).id)
        assert record is not None and record.lease is not None
        epoch = Epoch(await store.incarnation(), 1)
        assert record.lease.epoch == epoch
        assert await store.append([entry_of(1, epoch, 0, 7)]) == [AppendResult.TAKEN]


async def test_a_request_stopped_without_its_holder_keeps_no_answer_with_a_hole(
    redis_server: RedisServer,
) -> None:
    """The gateway saw a stop string; the instance died, and the log is gone."""
    prefix = next(prefixes)
    async with opened_client(redis_server) as client, opened_store(redis_server, prefix=prefix) as store:
        await alive(store, A)
        epoch = await leased(store, 1, A)
        await store.append([entry_of(1, epoch, 0, 1, 2)])
        await store.leave(A)
        await client.delete(f"{prefix}log:r0001")
        ended = await store.cancel(metadata(1).id, Outcome.STOP)
        assert ended is not None and ended.outcome is Outcome.OUTPUT_LOST

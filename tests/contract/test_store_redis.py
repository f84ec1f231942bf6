"""Store in Redis: outages, empty caches, several processes, expiry."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from contract.redis_stores import StoppedClock, SystemClock, entry_of, opened_client, opened_store, prefixes
from contract.suites.store.values import (
    ARRIVAL_NS,
    CHAT,
    GATEWAY,
    A,
    alive,
    each_slice,
    enqueued,
    leased,
    listening,
    metadata,
    until,
)
from qlm.domain.errors import InvalidValueError, StoreUnavailableError
from qlm.domain.ids import ControllerId
from qlm.domain.notices import CancelAsked, QueueChanged
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry
from qlm.domain.ports.outbox import EndEvent, OutboxState
from qlm.domain.ports.published import PublishedKind
from qlm.domain.view import RequestFilter
from qlm.store.core.limits import StoreLimits
from qlm.store.redis.codec import class_key
from qlm.store.redis.store import APPEND_CHUNK, RedisStore
from support.redis import RedisServer


async def test_a_redis_that_is_down_is_named_in_one_sentence() -> None:
    store = RedisStore("redis://user:secret@127.0.0.1:1/0", SystemClock())
    started = time.monotonic()
    with pytest.raises(StoreUnavailableError) as caught:
        await store.enqueue(metadata(1))
    assert time.monotonic() - started < 3
    message = str(caught.value)
    assert message.startswith("Redis at redis://127.0.0.1:1/0 cannot be used: ")
    assert "secret" not in message and "\n" not in message
    await store.close()


@pytest.mark.parametrize(
    "query", ["?socket_timeout=soon", "?colour=red", "?ssl_cert_reqs=7&protocol=x", "?timeout=3"]
)
def test_an_address_with_unknown_parameters_is_shown_without_its_password(query: str) -> None:
    with pytest.raises(InvalidValueError, match="store is 'redis://") as caught:
        RedisStore(f"redis://u:secret@h:6379/0{query}", SystemClock())
    assert "secret" not in str(caught.value)


async def test_a_redis_that_hangs_is_given_up_in_bounded_time(redis_server: RedisServer) -> None:
    async with (
        opened_store(redis_server, reply_timeout_s=0.2) as store,
        opened_client(redis_server) as client,
    ):
        await store.incarnation()
        await client.execute_command("CLIENT", "PAUSE", 600, "ALL")  # type: ignore[no-untyped-call]
        started = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            await store.enqueue(metadata(1))
        assert time.monotonic() - started < 0.5

        async def answers() -> bool:
            try:
                return await store.incarnation() > 0
            except StoreUnavailableError:
                return False

        await until(answers, "the end of the pause")


async def test_a_silent_subscription_is_opened_again(redis_server: RedisServer) -> None:
    async with (
        opened_client(redis_server) as client,
        opened_store(redis_server, reply_timeout_s=0.1) as store,
        listening(store.wakeups()) as received,
    ):
        await client.execute_command("CLIENT", "PAUSE", 500, "ALL")  # type: ignore[no-untyped-call]

        async def live_again() -> bool:
            return received == ["subscribed"]

        await until(live_again, "the subscription to come back")


async def test_subscriptions_outlive_a_restart(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(appendonly=True)
    async with opened_store(server) as store:
        await alive(store, A)
        await enqueued(store, 1, watcher=GATEWAY)
        epoch = await leased(store, 1, A)
        async with (
            listening(each_slice(store.outputs(GATEWAY))) as outputs,
            listening(store.notices(A.instance)) as notices,
            listening(store.wakeups()) as wakeups,
        ):
            server.kill()
            with pytest.raises(StoreUnavailableError):
                await store.cancel(metadata(1).id)
            server.start()
            asked = await store.cancel(metadata(1).id)
            assert asked is not None and asked.cancel_requested

            async def all_live() -> bool:
                return None in outputs and QueueChanged() in notices and "subscribed" in wakeups

            await until(all_live, "the subscriptions to come back")
            assert CancelAsked(id=metadata(1).id, outcome=Outcome.CANCELLED) in notices
            assert list(await store.append([entry_of(1, epoch, 0, 5)])) == [AppendResult.TAKEN]

            async def received() -> bool:
                return bool(outputs) and outputs[-1] is not None and outputs[-1].token_ids == (5,)

            await until(received, "the output")


async def test_a_closed_store_ends_its_iterators(redis_server: RedisServer) -> None:
    async with opened_store(redis_server) as store:
        received: list[str] = []

        async def listen() -> None:
            async for reason in store.wakeups():
                received.append(reason)

        task = asyncio.create_task(listen())

        async def live() -> bool:
            return received == ["subscribed"]

        await until(live, "the subscription")
        await store.close()
        await asyncio.wait_for(task, 5)


async def test_scripts_are_loaded_again_when_redis_forgot_them(redis_server: RedisServer) -> None:
    async with opened_store(redis_server) as store, opened_client(redis_server) as client:
        await alive(store, A)
        await client.script_flush()
        epoch = await leased(store, 1, A)
        await client.script_flush()
        entries = [entry_of(1, epoch, n, n) for n in range(3 * APPEND_CHUNK + 1)]
        assert set(await store.append(entries)) == {AppendResult.TAKEN}
        assert len(await store.append(entries)) == len(entries)


async def test_processes_share_a_prefix_and_prefixes_share_nothing(redis_server: RedisServer) -> None:
    prefix = next(prefixes)
    async with (
        opened_store(redis_server, prefix=prefix) as gateway,
        opened_store(redis_server, prefix=prefix) as agent,
        opened_store(redis_server) as stranger,
    ):
        await alive(agent, A)
        await enqueued(gateway, 1, watcher=GATEWAY)
        async with listening(each_slice(gateway.outputs(GATEWAY))) as received:
            epoch = await leased(agent, 1, A)
            await agent.append([entry_of(1, epoch, 0, 5)])

            async def arrived() -> bool:
                return [part.token_ids for part in received if part] == [(5,)]

            await until(arrived, "the output")
        assert await stranger.records(RequestFilter()) == []
        assert (await stranger.view()).instances == ()


async def test_an_emptied_redis_is_a_larger_incarnation_even_if_the_clock_went_back(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    clock = StoppedClock(1_000)
    store = RedisStore(server.url, clock)
    try:
        assert await store.incarnation() == 1_000
        clock.time_ns = 5
        server.flush()
        assert await store.incarnation() == 1_001
    finally:
        await store.close()


async def test_ended_requests_expire_and_unfinished_ones_do_not(redis_server: RedisServer) -> None:
    prefix = next(prefixes)
    limits = StoreLimits(result_ttl_s=0.2)
    async with (
        opened_client(redis_server) as client,
        opened_store(redis_server, prefix=prefix, limits=limits) as store,
    ):
        await alive(store, A)
        await enqueued(store, 1, 2, watcher=GATEWAY)
        epoch = await leased(store, 1, A)
        await store.append([entry_of(1, epoch, 0, 5)])
        assert [await client.pttl(key) async for key in client.scan_iter(f"{prefix}*:r0001")] == [-1] * 4
        await store.append([replace(entry_of(1, epoch, 1), outcome=Outcome.STOP)])

        async def gone() -> bool:
            return await store.record(metadata(1).id) is None

        await until(gone, "the record to expire")
        records = await store.records(RequestFilter())
        assert [record.metadata.id for record in records] == [metadata(2).id]
        await store.expire(time.time_ns())
        assert [key async for key in client.scan_iter(f"{prefix}*:r0001")] == []
        assert await client.zcard(f"{prefix}requests") == 1
        assert await client.llen(f"{prefix}ended") == 0


KEYS_AND_LIFETIMES_S = {"plan": 3600, "signal": 60, "clusters": 604_800, "history": 2_592_000}
"""As earlier versions know them: during a roll-out both read and write them."""


@pytest.mark.parametrize("kind", PublishedKind)
async def test_what_is_published_expires_unless_it_is_renewed(
    redis_server: RedisServer, kind: PublishedKind
) -> None:
    prefix = next(prefixes)
    key, lifetime_s = f"{prefix}{kind}", KEYS_AND_LIFETIMES_S[kind]
    async with opened_store(redis_server, prefix=prefix) as store, opened_client(redis_server) as client:
        await store.publish(kind, b"first")
        assert lifetime_s - 30 < await client.ttl(key) <= lifetime_s
        await client.expire(key, 7)
        await store.publish(kind, b"second")
        assert await client.ttl(key) > 7
        assert await client.get(key) == await store.published(kind) == b"second"
        await client.pexpire(key, 1)

        async def forgotten() -> bool:
            return await store.published(kind) is None

        await until(forgotten, "the end of its life")


async def test_a_plan_is_not_kept_in_a_redis_that_is_down() -> None:
    store = RedisStore("redis://127.0.0.1:1/0", SystemClock())
    with pytest.raises(StoreUnavailableError, match="cannot be used"):
        await store.publish(PublishedKind.PLAN, b"plan")
    with pytest.raises(StoreUnavailableError, match="cannot be used"):
        await store.published(PublishedKind.PLAN)
    await store.close()


GARBAGE = (
    b"",
    b"garbage",
    b"\xff\xfe",
    b"null",
    b"7",
    b"[7]",
    b"[{}]",
    b'{"kind": "cancel"}',
    b'{"kind": "cancel", "id": 7, "outcome": "stop"}',
    b'{"kind": "cancel", "id": "r0001", "outcome": "exploded"}',
    b'[{"id": "r0001", "offset": "0", "token_ids": [1]}]',
    b'[{"id": "r0001", "offset": -1, "token_ids": [1]}]',
    b'[{"id": "r0001", "offset": 0, "token_ids": [-1]}]',
    b'[{"id": "r0001", "offset": 0, "token_ids": ["x"]}]',
    b'[{"id": "r0001", "offset": 0, "token_ids": "abc"}]',
    b'[{"id": ["r0001"], "offset": 0, "token_ids": [1]}]',
    b'[{"id": "r0001", "offset": 0, "token_ids": [1], "outcome": "exploded"}]',
    b"[" * 1000 + b"]" * 1000,
)


async def test_unreadable_messages_are_dropped_and_nothing_behind_them_is_lost(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    prefix = next(prefixes)
    channels = [f"{prefix}{name}" for name in (f"outputs:{GATEWAY}", f"notices:{A.instance}", "wakeups")]
    async with opened_client(redis_server) as client, opened_store(redis_server, prefix=prefix) as store:
        await alive(store, A)
        await enqueued(store, 1, watcher=GATEWAY)
        async with (
            listening(each_slice(store.outputs(GATEWAY))) as outputs,
            listening(store.notices(A.instance)) as notices,
            listening(store.wakeups()) as wakeups,
        ):
            for each in GARBAGE * 20:
                for channel in channels:
                    await client.publish(channel, each)
            epoch = await leased(store, 1, A)
            await store.append([entry_of(1, epoch, 0, 5)])
            await store.cancel(metadata(1).id)
            await enqueued(store, 2)

            async def all_received() -> bool:
                cancelled = CancelAsked(id=metadata(1).id, outcome=Outcome.CANCELLED)
                parts = [part for part in outputs if part is not None]
                return bool(parts) and cancelled in notices and "request" in wakeups

            await until(all_received, "what comes after the garbage")
            assert [part.token_ids for part in outputs if part is not None] == [(5,)]
            assert None in outputs and QueueChanged() in notices, "what may be lost is asked for again"
            assert outputs.count(None) < 10, "but not for every message"
    lines = [record.getMessage() for record in caplog.records if "unreadable" in record.getMessage()]
    assert 2 <= len(lines) <= 3
    assert all(len(line) < 700 for line in lines)


async def test_a_lost_incarnation_means_that_the_queues_are_read_again(redis_server: RedisServer) -> None:
    """A Redis that evicts keys may have evicted requests as well."""
    prefix = next(prefixes)
    async with opened_client(redis_server) as client, opened_store(redis_server, prefix=prefix) as store:
        former = await store.incarnation()
        await store.mark_indexed((await store.acquire_leadership(ControllerId("c"), 60)).term)
        assert await store.indexed()
        await client.delete(f"{prefix}incarnation")
        assert await store.incarnation() > former
        assert not await store.indexed()


async def test_the_keys_of_an_idle_class_go_unless_it_is_used_again(redis_server: RedisServer) -> None:
    prefix, limits = next(prefixes), StoreLimits(result_ttl_s=1.0)
    learned = [f"{prefix}{kind}:{class_key(CHAT)}" for kind in ("class", "lengths")]
    async with (
        opened_store(redis_server, prefix=prefix, limits=limits) as store,
        opened_client(redis_server) as client,
    ):
        await alive(store, A)
        for n in (1, 2):
            await enqueued(store, n)
            epoch = await leased(store, n, A)
            entry = LogEntry(id=metadata(n).id, epoch=epoch, offset=0, token_ids=(5,), outcome=Outcome.STOP)
            await store.append([entry])
            assert await client.smembers(f"{prefix}classes") == {class_key(CHAT).encode()}
            assert await client.zcard(f"{prefix}idle") == 0
            await store.view()
            assert await client.smembers(f"{prefix}classes") == set()
            assert await client.zcard(f"{prefix}idle") == 1
            assert await client.exists(*learned) == 2

        async def none_left() -> bool:
            await store.view()
            return not [name async for name in client.scan_iter(f"{prefix}*llama*")]

        await until(none_left, "the keys of the class to go")


async def test_a_class_that_an_earlier_version_uses_again_is_not_forgotten(redis_server: RedisServer) -> None:
    """Its scripts add the class to the used ones, and leave the time since which it was idle."""
    prefix, limits, name = next(prefixes), StoreLimits(result_ttl_s=0.05), class_key(CHAT)
    async with (
        opened_store(redis_server, prefix=prefix, limits=limits) as store,
        opened_client(redis_server) as client,
    ):
        await enqueued(store, 1)
        await store.cancel(metadata(1).id)
        await store.view()
        assert await client.zcard(f"{prefix}idle") == 1
        await client.sadd(f"{prefix}classes", name)
        await client.zadd(f"{prefix}waiting:{name}", {f"{ARRIVAL_NS:020d}:r2": 0})

        async def pruned() -> bool:
            return len((await store.view()).classes) == 1 and await client.zcard(f"{prefix}idle") == 0

        await until(pruned, "the idle entry to go")
        assert await client.exists(f"{prefix}class:{name}")


async def test_dropped_events_are_reported_for_a_day(redis_server: RedisServer) -> None:
    prefix = next(prefixes)
    async with (
        opened_store(redis_server, prefix=prefix, limits=StoreLimits(events_waiting_max=1)) as store,
        opened_client(redis_server) as client,
    ):
        for n in range(2):
            await store.add_end(EndEvent(subject=f"r{n}", ended_as="stop", tenant="a", at_ns=ARRIVAL_NS))
        assert await store.outbox_state() == OutboxState(1, 1)
        assert 0 < await client.ttl(f"{prefix}ends_dropped") <= 86_400


async def test_a_watched_request_that_is_lost_from_the_order_of_its_class_waits_again(
    redis_server: RedisServer,
) -> None:
    prefix = next(prefixes)
    async with opened_store(redis_server, prefix=prefix) as store, opened_client(redis_server) as client:
        await alive(store, A)
        await enqueued(store, 1, 2)
        await leased(store, 2, A)
        await client.delete(f"{prefix}waiting:{class_key(CHAT)}")
        assert await store.waiting(CHAT) == []
        for n in (1, 2):
            await store.watch(metadata(n), GATEWAY)
        assert await store.waiting(CHAT) == [metadata(1).id], "one that runs does not wait"

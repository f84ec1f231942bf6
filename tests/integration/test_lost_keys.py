"""Keys of Redis that are lost or damaged, kind by kind: no operation fails, and requests go on."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import redis.asyncio

from contract.suites.store.values import (
    CHAT,
    G1,
    G2,
    GATEWAY,
    LIMITS,
    A,
    B,
    alive,
    enqueued,
    leased,
    metadata,
)
from qlm.domain.errors import NotLeadingError, StoreDataError
from qlm.domain.formats.api_keys import encode_api_key
from qlm.domain.ids import ControllerId
from qlm.domain.lease_answer import Granted
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry
from qlm.domain.plan_change import CloseGroup, CreateGroup, ResizeGroup, SetQueue
from qlm.domain.ports.api_keys import ApiKey, Scope
from qlm.domain.ports.outbox import EndEvent
from qlm.domain.ports.published import PublishedKind
from qlm.domain.request import RequestState
from qlm.domain.view import RequestFilter
from qlm.store.redis.store import RedisStore
from support.gateway import SystemClock
from support.redis import RedisServer

pytestmark = pytest.mark.servers

WAITING, RUNNING, FRESH = 0, 1, 9
EVENT = EndEvent(subject="s", ended_as="stop", tenant="t", at_ns=1)
CONTROLLER = ControllerId("controller")
_prefixes = (f"lost-{n}:" for n in itertools.count())

KINDS = (
    *("incarnation", "indexed", "requests", "held", "drops", "classes", "queues", "leases", "instances"),
    *("leader", "terms", "plan", "request:r0000", "request:r0001", "events:r0001", "log:r0001"),
    *("watchers:r0001", "waiting:*", "class:*", "groups:*", "group:g1", "group:g2", "queue:a", "instance:a"),
)

FIXED = (
    *(
        "incarnation",
        "indexed",
        "requests",
        "held",
        "drops",
        "ended",
        "classes",
        "idle",
        "queues",
        "forecasts",
    ),
    *("homes", "leases", "instances", "unplaced", "refused", "leader", "terms", "plan", "signal", "history"),
    *("ends", "ends_dropped", "aside"),
)
"""Keys of the whole deployment."""

SORTED_SETS = ("requests", "held", "drops", "idle", "ends")


@pytest.fixture
async def client(redis_server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    opened = redis.asyncio.Redis.from_url(redis_server.url)
    yield opened
    await opened.aclose()


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    prefix = next(_prefixes)
    opened = RedisStore(redis_server.url, SystemClock(), prefix=prefix, limits=LIMITS)
    await _fill(opened)
    yield opened
    await opened.close()


async def _fill(store: RedisStore) -> None:
    """One request waits in a group on a virtual queue, one runs, a controller leads."""
    await alive(store, A)
    term = (await store.acquire_leadership(CONTROLLER, 3600)).term
    await store.mark_indexed(term)
    await store.enqueue(metadata(WAITING, drop=True), GATEWAY)
    await enqueued(store, RUNNING, watcher=GATEWAY)
    created, queued = CreateGroup(id=G1, cls=CHAT, count=2), SetQueue(instance=A.instance, groups=(G1,))
    await store.apply([created, queued], term)
    await store.publish(PublishedKind.PLAN, b"{}", term)
    epoch = await leased(store, RUNNING, A, G1)
    await store.append([LogEntry(id=metadata(RUNNING).id, epoch=epoch, offset=0, token_ids=(1, 2))])


async def _lose(client: redis.asyncio.Redis, store: RedisStore, kind: str) -> None:
    async for key in client.scan_iter(f"{store._prefix}{kind}"):
        await client.delete(key)


async def _write_over(client: redis.asyncio.Redis, store: RedisStore, name: str) -> None:
    """Let a key hold another type than QLM writes, as another program would."""
    key = f"{store._prefix}{name}"
    await client.delete(key)
    if name in SORTED_SETS:
        await client.set(key, b"of another program")
    else:
        await client.zadd(key, {"of another program": 1})


def _operations(store: RedisStore) -> Mapping[str, Callable[[], Awaitable[object]]]:
    """Return every operation, on what `_fill` has made; in the order of a cluster that goes on."""
    waiting, running = metadata(WAITING), metadata(RUNNING)

    async def planned() -> None:
        term = (await store.acquire_leadership(CONTROLLER, 3600)).term
        await store.expire_leases(term)
        await store.apply([ResizeGroup(id=G1, count=1, sealed=True)], term)
        await store.apply([CreateGroup(id=G2, cls=CHAT, count=1)], term)
        await store.apply([SetQueue(instance=A.instance, groups=(G1, G2))], term)
        await store.apply([CloseGroup(id=G1)], term)

    async def appended() -> None:
        record = await store.record(running.id)
        if record is not None and record.lease is not None:
            epoch = record.lease.epoch
            await store.append([LogEntry(id=running.id, epoch=epoch, offset=2, token_ids=(3,))])
            await store.park(running.id, epoch, "")
            await store.resume(running.id, epoch)
            await store.demote(running, epoch, "late")

    return {
        "view": store.view,
        "virtual_queue": lambda: store.virtual_queue(A.instance),
        "queue_position": lambda: store.queue_position(waiting.id),
        "record": lambda: store.record(waiting.id),
        "records": lambda: store.records(RequestFilter()),
        "held": lambda: store.records(RequestFilter(state=RequestState.RUNNING)),
        "read_output": lambda: store.read_output(running.id, 0),
        "watch": lambda: store.watch(running, GATEWAY),
        "enqueue": lambda: store.enqueue(metadata(FRESH), GATEWAY),
        "enqueue_again": lambda: store.enqueue(waiting, GATEWAY),
        "append": appended,
        "reregister": lambda: store.reregister(running, A, (1, 2)),
        "planned": planned,
        "lease": lambda: store.lease(waiting, B, G1),
        "unwatch": lambda: store.unwatch(running.id, GATEWAY),
        "heartbeat": lambda: alive(store, A),
        "ask_drain": lambda: store.ask_drain(A.instance),
        "unplaced": store.unplaced,
        "cancel": lambda: store.cancel(running.id),
        "expire": lambda: store.expire(2**62),
        "leave": lambda: store.leave(A),
        "leader": store.leader,
        "add_end": lambda: store.add_end(EVENT),
        "claim_ends": lambda: store.claim_ends(1, 1.0),
        "outbox_state": store.outbox_state,
        "report_unplaced": lambda: store.report_unplaced(B.instance, "why", 60),
        "refused_agents": store.refused_agents,
        "report_refused_agent": lambda: store.report_refused_agent(B.instance, "why", 60),
        "end_waiting": lambda: store.end_waiting([waiting.id], Outcome.OUTPUT_LOST, ""),
        "indexed": store.indexed,
        "incarnation": store.incarnation,
        "warnings": store.warnings,
        **{f"published {kind}": partial(store.published, kind) for kind in PublishedKind},
    }


@pytest.mark.parametrize("kind", KINDS)
async def test_an_operation_that_finds_a_key_lost_answers_as_if_it_had_never_been(
    store: RedisStore, client: redis.asyncio.Redis, kind: str
) -> None:
    for operation in _operations(store).values():
        await _lose(client, store, kind)
        try:
            await operation()
        except NotLeadingError:
            continue


@pytest.mark.parametrize("kind", KINDS)
async def test_what_waits_can_be_planned_and_leased_after_the_queue_was_read_again(
    store: RedisStore, client: redis.asyncio.Redis, kind: str
) -> None:
    await _lose(client, store, kind)
    await store.enqueue(metadata(WAITING))  # as the controller does that finds more messages than known
    view = await store.view()
    (chat,) = [each for each in view.classes if each.cls == CHAT]
    assert chat.queued >= 1
    term = (await store.acquire_leadership(CONTROLLER, 3600)).term
    await store.apply([CreateGroup(id=G2, cls=CHAT, count=1)], term)
    await store.apply([SetQueue(instance=A.instance, groups=(G2,))], term)
    queue = await store.virtual_queue(A.instance)
    assert [group.id for group in queue.groups] == [G2]
    assert isinstance(await store.lease(metadata(WAITING), A, G2), Granted)


@pytest.mark.parametrize("kind", FIXED)
async def test_a_key_of_all_requests_that_another_program_wrote_over_counts_as_lost(
    store: RedisStore, client: redis.asyncio.Redis, kind: str
) -> None:
    if kind == "terms":  # which begins with a new leader
        await _lose(client, store, "leader")
    for operation in _operations(store).values():
        await _write_over(client, store, kind)
        with suppress(NotLeadingError):
            await operation()
    (warning,) = await store.warnings()
    assert f"{store._prefix}aside:" in warning
    assert await client.exists(f"{store._prefix}aside:{kind}")


@pytest.mark.parametrize("kind", FIXED)
async def test_what_waits_goes_on_after_a_key_of_all_requests_was_written_over(
    store: RedisStore, client: redis.asyncio.Redis, kind: str
) -> None:
    await _write_over(client, store, kind)
    await store.view()
    await store.expire(0)
    indexed = await store.indexed()
    await store.enqueue(metadata(WAITING, drop=True))  # as a controller does of a store that is not indexed
    await store.reregister(metadata(RUNNING), A, (1, 2))
    await alive(store, A)
    view = await store.view()
    assert view.leased == {A.instance: 1}
    assert [each.id for each in view.instances] == [A.instance]
    assert {each.metadata.id for each in await store.records(RequestFilter())} == {
        metadata(n).id for n in (WAITING, RUNNING)
    }
    assert await store.expire(2**62) == [metadata(WAITING).id]
    if kind in ("incarnation", "drops", "classes", "held"):
        assert not indexed


async def test_a_number_that_another_program_wrote_over_counts_as_lost(
    store: RedisStore, client: redis.asyncio.Redis
) -> None:
    before = await store.incarnation()
    for name in ("incarnation", "terms", "ends_dropped", "aside"):
        await client.set(f"{store._prefix}{name}", "no number")
    await client.delete(f"{store._prefix}leader")
    assert await store.incarnation() > before
    term = (await store.acquire_leadership(CONTROLLER, 3600)).term
    assert term.n == 1
    assert await store.incarnation() > term.incarnation  # no term counts twice
    await store.warnings()


async def test_leases_are_counted_anew_if_their_number_cannot_be(
    store: RedisStore, client: redis.asyncio.Redis
) -> None:
    await client.delete(f"{store._prefix}leases")
    await leased(store, FRESH, A)
    assert (await store.view()).leased == {A.instance: 2}


@pytest.mark.parametrize("kind", ["held", "leases", "request:r0001"])
async def test_the_lease_of_a_lost_holder_ends_though_keys_of_leases_are_lost(
    store: RedisStore, client: redis.asyncio.Redis, kind: str
) -> None:
    await _lose(client, store, kind)
    await store.leave(A)
    await store.enqueue(metadata(RUNNING))
    await store.expire_leases()
    record = await store.record(metadata(RUNNING).id)
    assert record is not None
    assert (record.state, record.lease) == (RequestState.QUEUED, None)
    assert (await store.view()).leased == {}


async def test_a_damaged_request_costs_its_own_operations_only(
    store: RedisStore, client: redis.asyncio.Redis
) -> None:
    damaged, whole = metadata(WAITING), metadata(RUNNING)
    key = f"{store._prefix}request:{damaged.id}"
    row: dict[Any, Any] = await client.hgetall(key)
    for json in (b"{", b"{}"):
        broken = {name: json if value.startswith(b"{") else value for name, value in row.items()}
        assert broken != row
        await client.hset(key, mapping=broken)
        with pytest.raises(StoreDataError, match=r"cannot be read|expected 1"):
            await store.record(damaged.id)
        assert [each.metadata.id for each in await store.records(RequestFilter())] == [whole.id]
    await client.set(key, b"no hash")
    assert await store.record(damaged.id) is None
    assert (await store.enqueue(damaged)).created


async def test_an_unreadable_heartbeat_costs_the_view_of_its_instance_only(
    store: RedisStore, client: redis.asyncio.Redis
) -> None:
    await alive(store, B)
    await client.hset(f"{store._prefix}instance:a", "status", b"{}")
    assert [each.id for each in (await store.view()).instances] == [B.instance]


async def test_a_damaged_api_key_hides_no_other_and_is_logged_once(
    store: RedisStore, client: redis.asyncio.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    revoked, kept, new = (
        ApiKey(id=f"key_{n}", digest=str(n) * 64, tenant="a", scopes=(Scope.INFER,), created_ns=n)
        for n in range(3)
    )
    for key in (revoked, kept):
        await store.add_api_key(key)
    for damage in (b"", b"{}", b"[1]", b"\xff", b'{"scopes": 7}', encode_api_key(new)[:-9]):
        await client.hset(f"{store._prefix}api_keys", "key_d", damage)
        assert await store.api_keys() == [revoked, kept]
    await store.remove_api_key(revoked.id)
    await store.add_api_key(new)
    assert await store.api_keys() == [kept, new]
    assert caplog.text.count("the API key 'key_d' is not used") == 1
    assert await store.remove_api_key("key_d")
    await client.set(f"{store._prefix}api_keys", b"")
    with pytest.raises(StoreDataError, match="WRONGTYPE"):
        await store.api_keys()
    await store.add_api_key(new)
    assert await store.api_keys() == [new]
    assert await store.warnings()

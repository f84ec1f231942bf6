"""The link of a gateway worker: what crosses it, what cannot, and what bounds it."""

import asyncio
import pickle
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from contract.suites.store.values import G1, GATEWAY, LIMITS, A, enqueued, leased, metadata
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.settings import parse_config
from qlm.cli.processes.answering import Answering
from qlm.cli.processes.frames import FRAME_BYTES_MAX, Link, Message, decode, encode
from qlm.cli.processes.remote import Calls, RemoteBroker, RemoteRetries, remote_store
from qlm.cli.processes.shared_retries import SharedRetries
from qlm.cli.processes.totals import WorkerTotals, families_of
from qlm.cli.processes.watched import WatchedRequests
from qlm.cli.processes.workers import check_workers
from qlm.domain.errors import (
    BrokerUnavailableError,
    DeliveryLostError,
    InvalidValueError,
    StoreEmptiedError,
    StoreUnavailableError,
)
from qlm.domain.formats.extensions import NO_LOG_EXTENSIONS, LogExtensions
from qlm.domain.ids import GatewayId, QueueName, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry, OutputSlice
from qlm.domain.plan_change import ResizeGroup
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.ports.published import PublishedKind
from qlm.gateway.core.sdk_retries import SdkCall
from qlm.gateway.observability.metrics import GatewayMetrics
from qlm.store.embedded.memory import MemoryStore
from support.gateway import SystemClock
from support.qlm_process import emulated
from support.two_processes import linked


async def no_broker() -> Broker:
    raise BrokerUnavailableError("there is none")


def test_extensions_without_fields_stay_one_object() -> None:
    extended = LogExtensions(render_state="x", render_state_tokens=3)
    sent = [("item", 1, OutputSlice(metadata(1).id, 0, (1,))), ("item", 1, extended)]
    frame = encode(sent)
    received = decode(frame[4:])
    assert received == sent
    assert received[0][2].extensions is NO_LOG_EXTENSIONS


def test_a_message_makes_values_of_the_domain_only() -> None:
    for value in (Path("x"), asyncio.Event, print):
        with pytest.raises(pickle.UnpicklingError, match="expected values of the domain"):
            decode(pickle.dumps([("call", value)]))


class _ByAttribute:
    """Pickles as members of enumerations do before Python 3.11.4."""

    def __init__(self, owner: object, name: str) -> None:
        self.named = owner, name

    def __reduce__(self) -> tuple[object, tuple[object, str]]:
        return getattr, self.named


def test_members_of_enumerations_cross_however_they_are_pickled_and_no_other_attributes() -> None:
    assert decode(pickle.dumps([("call", _ByAttribute(Outcome, "STOP"))])) == [("call", Outcome.STOP)]
    for owner, name in ((LogEntry, "__init__"), (Outcome.STOP, "__class__")):
        with pytest.raises(pickle.UnpicklingError, match="expected one of an enumeration"):
            decode(pickle.dumps([("call", _ByAttribute(owner, name))]))
    with pytest.raises(KeyError):
        decode(pickle.dumps([("call", _ByAttribute(Outcome, "__class__"))]))


async def test_errors_cross_with_their_fields() -> None:
    store = MemoryStore(SystemClock(), LIMITS)
    async with linked(store, no_broker) as calls:
        remote = remote_store(calls)
        with pytest.raises(StoreEmptiedError, match=r"not of incarnation 1 any more$"):
            await remote.enqueue(metadata(1), incarnation=1)
        with pytest.raises(InvalidValueError) as invalid:
            await remote.apply([ResizeGroup(id=G1, count=-1, sealed=False)])
        assert invalid.value.expected
        with pytest.raises(BrokerUnavailableError, match="there is none"):
            await RemoteBroker(calls).depth(QueueName("q"))
        with pytest.raises(RuntimeError, match="no call of a worker"):
            await calls.call(0, "close")
        with pytest.raises(AttributeError):
            getattr(remote, "no_operation")  # noqa: B009 - mypy knows that there is none


async def test_a_retry_is_known_to_all_workers_of_an_owner_and_continues_once() -> None:
    store, shared = MemoryStore(SystemClock(), LIMITS), SharedRetries()
    first, retry = SdkCall("t", "d", 0, 7), SdkCall("t", "d", 1, 7)
    async with linked(store, no_broker, shared) as one, linked(store, no_broker, shared) as other:
        RemoteRetries(one).left(first, RequestId("r"), 10, 100)
        await remote_store(one).incarnation()  # its answer comes after the note
        assert await RemoteRetries(other).take(retry, 20) == "r"
        assert await RemoteRetries(one).take(retry, 20) is None
    with pytest.raises(StoreUnavailableError, match="has ended"):
        await RemoteRetries(one).take(retry, 20)


class _Defective(MemoryStore):
    """Answers with what cannot be sent."""

    async def published(self, kind: PublishedKind) -> bytes | None:
        return cast("bytes", lambda: b"")

    async def wakeups(self) -> AsyncIterator[str]:
        yield cast("str", lambda: "")


async def test_a_message_that_cannot_be_sent_fails_its_call_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(60), linked(_Defective(SystemClock(), LIMITS), no_broker) as calls:
        remote = remote_store(calls)
        asked = (remote.incarnation(), calls.call(0, "cancel", lambda: None), remote.view())
        known, unsent, view = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(known, int) and not isinstance(view, BaseException)
        assert "a message cannot be sent" in str(unsent)
        with pytest.raises(RuntimeError, match="a message cannot be sent"):
            await remote.published(PublishedKind.CLUSTERS)
        with pytest.raises(RuntimeError, match="a message cannot be sent"):
            await anext(aiter(remote.wakeups()))
        with pytest.raises(RuntimeError, match="a message cannot be sent"):
            await anext(calls.feed("outputs", lambda: None))
    assert "Traceback" in caplog.text


async def test_a_worker_that_has_ended_watches_no_request() -> None:
    store, other = MemoryStore(SystemClock(), LIMITS), GatewayId("another")
    first, second = metadata(1), metadata(2)
    async with linked(store, no_broker) as calls:
        remote = remote_store(calls)
        await remote.enqueue(first, GATEWAY)
        await store.enqueue(second)
        await remote.watch(second, GATEWAY)
    for each in (first, second):
        await store.watch(each, other)
        assert await store.unwatch(each.id, other) == 0, "no client has it: its gateway cancels it"


async def test_what_a_worker_watched_is_kept_until_its_end_or_the_workers_word() -> None:
    store, watched = MemoryStore(SystemClock(), LIMITS), WatchedRequests()
    found = await store.enqueue(metadata(1), GATEWAY)
    watched.note_call("enqueue", (metadata(1), GATEWAY, None), found)
    watched.note_outputs(GATEWAY, [OutputSlice(metadata(1).id, 0, (1,), Outcome.STOP)])
    watched.note_call("watch", (metadata(2), GATEWAY), None)
    watched.note_call("unwatch", (metadata(2).id, GATEWAY), 0)
    await watched.unwatch_all(store)
    other = GatewayId("another")
    await store.watch(metadata(1), other)
    assert await store.unwatch(metadata(1).id, other) == 1


class _Recording(MemoryStore):
    """Records of which requests a watcher was removed."""

    def __init__(self) -> None:
        super().__init__(SystemClock(), LIMITS)
        self.unwatched: list[RequestId] = []

    async def unwatch(self, id: RequestId, watcher: GatewayId) -> int:
        self.unwatched.append(id)
        return await super().unwatch(id, watcher)


async def test_nothing_is_kept_of_requests_that_a_worker_finds_ended_or_missing() -> None:
    store = _Recording()
    ended, missing, waiting = metadata(1), metadata(2), metadata(3)
    await enqueued(store, 1, 3)
    await store.cancel(ended.id, Outcome.CANCELLED, "why")
    async with linked(store, no_broker) as calls:
        remote = remote_store(calls)
        for each in (ended, missing, waiting):
            await remote.watch(each, GATEWAY)
            await remote.read_output(each.id, 0)
    assert store.unwatched == [waiting.id]


async def test_after_the_owners_end_all_calls_fail_and_feeds_end() -> None:
    store = MemoryStore(SystemClock(), LIMITS)
    async with linked(store, no_broker) as calls:
        remote, broker = remote_store(calls), RemoteBroker(calls)
        feed = aiter(remote.outputs(GATEWAY))
        assert await anext(feed) == []
        waiting = asyncio.ensure_future(anext(feed))
        await asyncio.sleep(0)
    with pytest.raises(StoreUnavailableError, match="has ended"):
        await waiting
    with pytest.raises(StoreUnavailableError, match="has ended"):
        await remote.view()
    with pytest.raises(StoreUnavailableError, match="has ended"):
        await anext(aiter(remote.outputs(GATEWAY)))
    with pytest.raises(BrokerUnavailableError, match="has ended"):
        await broker.publish(QueueName("q"), b"1")
    with pytest.raises(DeliveryLostError):
        await broker.ack(Delivery(QueueName("q"), 1, b"", False))
    await broker.close()


async def test_a_worker_that_reads_nothing_holds_up_its_feeds_only() -> None:
    """What is kept for it is bounded: its backlog in the store, and the buffer of the socket."""
    store = MemoryStore(SystemClock(), LIMITS)
    ours, theirs = socket.socketpair()
    answering = Answering(store, no_broker, SharedRetries())
    loop = asyncio.get_running_loop()
    transport, link = await loop.create_unix_connection(
        lambda: Link(answering.receive, lambda: None), sock=ours
    )
    answering.link = link
    answering.receive(("open", 1, "outputs", (GATEWAY,)))
    await enqueued(store, 1, watcher=GATEWAY)
    epoch = await leased(store, 1, A)
    for offset in range(0, 400_000, 1_000):
        entry = LogEntry(id=metadata(1).id, epoch=epoch, offset=offset, token_ids=tuple(range(1_000)))
        await store.append([entry])
        await asyncio.sleep(0)
    assert link.behind
    assert transport.get_write_buffer_size() < 200_000
    await answering.end()
    link.close()
    theirs.close()


async def test_what_is_no_frame_ends_the_link() -> None:
    ours, theirs = socket.socketpair()
    lost = asyncio.Event()
    await asyncio.get_running_loop().create_unix_connection(
        lambda: Link(lambda message: None, lost.set), sock=ours
    )
    theirs.send((FRAME_BYTES_MAX + 1).to_bytes(4, "little"))
    await asyncio.wait_for(lost.wait(), 5)
    theirs.close()


async def test_answers_to_calls_that_nobody_waits_for_are_dropped() -> None:
    calls = Calls()
    answers: list[Message] = [("done", 1, None), ("failed", 2, ("RuntimeError", "x", {})), ("item", 3, ())]
    for answer in answers:
        assert calls.receive(answer)
    assert not calls.receive(("stop",))


def test_counts_of_workers_that_ended_stay() -> None:
    totals, worker = WorkerTotals(), CollectorRegistry()
    for registry in (totals, worker):
        counter = Counter("qlm_gateway_accepted", "Accepted", ("model",), registry=registry)
        Gauge("qlm_gateway_sessions", "Open", registry=registry).set(2)
        Gauge("qlm_store_up", "Up", registry=registry).set(1)
        counter.labels("m").inc()

    def exported() -> list[str]:
        lines = generate_latest(totals).decode().splitlines()
        return [line for line in lines if not line.startswith("#") and "created" not in line]

    totals.put(1, families_of(worker))
    totals.put(2, families_of(worker))
    assert exported() == [
        'qlm_gateway_accepted_total{model="m"} 3.0', "qlm_gateway_sessions 6.0", "qlm_store_up 1.0",
    ]  # fmt: skip
    totals.ended(2)
    totals.put(2, families_of(worker))
    totals.ended(1)
    assert exported() == [
        'qlm_gateway_accepted_total{model="m"} 4.0', "qlm_gateway_sessions 4.0", "qlm_store_up 1.0",
    ]  # fmt: skip


def test_what_each_process_says_of_the_deployment_does_not_add_up() -> None:
    totals, worker = WorkerTotals(), CollectorRegistry()
    for registry in (totals, worker):
        GatewayMetrics(100, registry).unprotected_listeners.set(1)
    totals.put(1, families_of(worker))
    assert "qlm_gateway_unprotected_listeners 1.0" in generate_latest(totals).decode().splitlines()


def test_objectives_of_all_workers_have_a_bounded_number_of_labels() -> None:
    totals = WorkerTotals(classes_max=2)
    Counter("qlm_gateway_requests", "Ends", ("slo_class",), registry=totals).labels("a").inc()
    for number, objectives in enumerate((("b", "c"), ("a", "d", "other"))):
        worker = CollectorRegistry()
        counter = Counter("qlm_gateway_requests", "Ends", ("slo_class",), registry=worker)
        for each in objectives:
            counter.labels(each).inc()
        totals.put(number, families_of(worker))
    totals.ended(0)

    def counted(objective: str) -> float | None:
        return totals.get_sample_value("qlm_gateway_requests_total", {"slo_class": objective})

    assert [counted(each) for each in ("b", "c", "a", "d", "other")] == [1, 1, None, None, 4]


def test_workers_need_the_embedded_queue_and_render_tiers_that_run_by_themselves() -> None:
    config = emulated("m", http={"workers": 2})
    check_workers(parse_config(config, "test"))
    servers = config | {"broker": "amqp://localhost", "store": "redis://localhost"}
    with pytest.raises(ConfigError, match=r"^http\.workers is 2, and the broker a server; expected 0"):
        check_workers(parse_config(servers, "test"))
    launched = config | {"models": [{"id": "m", "engine": "vllm", "path": "/m", "render": {}}]}
    with pytest.raises(ConfigError, match=r"^http\.workers is 2, and m has a render tier without a url"):
        check_workers(parse_config(launched, "test"))

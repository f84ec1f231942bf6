"""A gateway over HTTP whose broker or store fails."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from qlm.domain.errors import BrokerUnavailableError, StoreUnavailableError
from qlm.domain.ids import GatewayId, QueueName, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.output import OutputSlice
from qlm.domain.ports.broker import Broker
from qlm.domain.request import RequestMetadata, RequestRecord
from qlm.domain.shell.faults import FaultKind, FaultLog
from qlm.domain.view import Enqueued
from qlm.gateway.core.access import AccessRules
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.http.app import RequestIds
from qlm.gateway.http.server import create_server
from qlm.gateway.sessions.gateway import create_gateway
from qlm.store.embedded.memory import MemoryStore
from support.gateway import Cluster, SystemClock, mark_indexed, running_cluster, serving, until
from support.http_calls import ANSWER, COMPLETION, QUEUED, Events, refusal


class BrokenBroker:
    """Refuses, or never confirms, what is published; else as the broker it stands before."""

    def __init__(self, broker: Broker, *, confirm: bool | None) -> None:
        """Confirm nothing and say so (False), or store it but never confirm (None)."""
        self._broker = broker
        self._confirm = confirm

    async def publish(self, queue: QueueName, body: bytes) -> None:
        if self._confirm is False:
            raise BrokerUnavailableError("connection refused")
        await self._broker.publish(queue, body)
        await asyncio.Event().wait()

    async def probe(self) -> None:
        raise BrokerUnavailableError("connection refused")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


class HeldBroker:
    """Publishes when told to; else as the broker it stands before."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def publish(self, queue: QueueName, body: bytes) -> None:
        self.asked.set()
        await self.may.wait()
        await self._broker.publish(queue, body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


async def test_a_try_is_not_accepted_if_its_twin_was_withdrawn_before_it_was_confirmed(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    slow_broker: Any = HeldBroker(cluster.broker)
    broken: Any = BrokenBroker(cluster.broker, confirm=False)
    slow, bad, good = [await cluster.gateway(broker=each) for each in (slow_broker, broken, cluster.broker)]
    headers = {"idempotency-key": "k"}

    def ask(url: str) -> Any:
        return http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers, timeout=10)

    first = asyncio.create_task(ask(slow))
    await slow_broker.asked.wait()
    assert (await ask(bad)).status_code == 503
    slow_broker.may.set()
    assert (await first).status_code == 503
    assert (await ask(good)).json()["choices"][0]["text"] == ANSWER


async def test_without_a_broker_nothing_is_accepted(cluster: Cluster, http: httpx.AsyncClient) -> None:
    broken: Any = BrokenBroker(cluster.broker, confirm=False)
    url = await cluster.gateway(broker=broken)
    for body in (COMPLETION, COMPLETION | {"stream": True}):
        answer = await http.post(f"{url}/v1/completions", json=body)
        assert (answer.status_code, refusal(answer)["code"]) == (503, "broker_unavailable")
        assert answer.headers["retry-after"] == "1"
    for path, status in (("readyz", 503), ("health", 503), ("healthz", 200)):
        assert (await http.get(f"{url}/{path}")).status_code == status
    assert "qlm_gateway_open_requests 0.0" in (await http.get(f"{cluster.admin_urls[url]}/metrics")).text


async def test_a_message_stored_but_never_confirmed_does_not_run(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    cluster.agent.working.clear()
    broken: Any = BrokenBroker(cluster.broker, confirm=None)
    url = await cluster.gateway(broker=broken, limits=GatewayLimits(publish_timeout_s=0.1))
    answer = await http.post(f"{url}/v1/completions", json=COMPLETION)
    assert answer.status_code == 503
    good = await cluster.gateway()
    cluster.agent.working.set()
    assert (await http.post(f"{good}/v1/completions", json=COMPLETION | {"user": "good"})).status_code == 200
    assert [request.tenant for request in cluster.agent.leased] == ["good"]


async def test_a_try_that_was_not_confirmed_leaves_alone_what_another_one_with_its_key_brought(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    cluster.agent.working.clear()
    broken: Any = BrokenBroker(cluster.broker, confirm=None)
    url = await cluster.gateway(broker=broken, limits=GatewayLimits(publish_timeout_s=0.5))
    good = await cluster.gateway()
    headers = {"Idempotency-Key": "twice"}
    first = asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers))
    second = asyncio.create_task(http.post(f"{good}/v1/completions", json=COMPLETION, headers=headers))
    await until(lambda: cluster.store.records(QUEUED))
    assert (await first).status_code == 503
    cluster.agent.working.set()
    assert (await second).status_code == 200


class HungStore(MemoryStore):
    """Does not answer when it is asked to cancel, as a store may that is overloaded."""

    async def cancel(
        self, id: RequestId, outcome: Outcome = Outcome.CANCELLED, why: str = ""
    ) -> RequestRecord | None:
        await asyncio.Event().wait()
        return None


async def test_what_was_not_confirmed_never_waits_in_the_store_without_a_message(
    tmp_path: Path, http: httpx.AsyncClient
) -> None:
    """A retry with its key would wait with it, for ever."""
    headers = {"Idempotency-Key": "again"}
    async with running_cluster(tmp_path, HungStore(SystemClock())) as running:
        broken: Any = BrokenBroker(running.broker, confirm=False)
        url = await running.gateway(broker=broken, limits=GatewayLimits(publish_timeout_s=0.1))
        answer = await http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers)
        assert answer.status_code == 503
        assert not await running.store.records(QUEUED)
        good = await running.gateway()
        answer = await http.post(f"{good}/v1/completions", json=COMPLETION, headers=headers)
        assert answer.status_code == 200


class EmptiedStore(MemoryStore):
    """Still tells of a request, and is emptied before it is asked for its output."""

    emptied = False

    async def read_output(self, id: RequestId, offset: int) -> OutputSlice | None:
        return None if self.emptied else await super().read_output(id, offset)

    async def incarnation(self) -> int:
        return await super().incarnation() + self.emptied


async def test_a_store_emptied_while_a_request_is_looked_up_is_said_to_be_rebuilt(
    tmp_path: Path, http: httpx.AsyncClient
) -> None:
    store = EmptiedStore(SystemClock())
    async with running_cluster(tmp_path, store) as running:
        url = await running.gateway()
        answer = await http.post(f"{url}/v1/completions", json=COMPLETION)
        id = answer.headers["x-request-id"]
        assert (await http.get(f"{url}/v1/requests/{id}")).status_code == 200
        store.emptied = True
        answer = await http.get(f"{url}/v1/requests/{id}")
        assert (answer.status_code, refusal(answer)["code"]) == (503, "state_rebuilding")


async def test_an_unknown_request_may_wait_until_the_queue_was_read_into_the_store(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    """The gateway has seen nothing itself: it began after the store was emptied."""
    cluster.store = MemoryStore(SystemClock())
    url = await cluster.gateway()
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/events")):
        answer = await http.request(method, f"{url}/v1/requests/waits{path}")
        assert (answer.status_code, refusal(answer)["code"]) == (503, "state_rebuilding")
        assert answer.headers["retry-after"] == "1"
    await mark_indexed(cluster.store)
    answer = await http.get(f"{url}/v1/requests/waits")
    assert (answer.status_code, refusal(answer)["code"]) == (404, "request_not_found")


class ForgetfulStore(MemoryStore):
    """Fails to index, or announces nothing, as a store may that is going."""

    enqueues_to_fail = 0
    deaf = False

    async def enqueue(
        self, metadata: RequestMetadata, watcher: GatewayId | None = None, incarnation: int | None = None
    ) -> Enqueued:
        if self.enqueues_to_fail:
            self.enqueues_to_fail -= 1
            raise StoreUnavailableError("connection reset")
        return await super().enqueue(metadata, watcher, incarnation)

    def outputs(self, watcher: GatewayId) -> AsyncIterator[Sequence[OutputSlice]]:
        return self._silence() if self.deaf else super().outputs(watcher)

    async def _silence(self) -> AsyncIterator[Sequence[OutputSlice]]:
        await asyncio.Event().wait()
        yield ()


@pytest.fixture
async def forgetful(tmp_path: Path) -> AsyncIterator[tuple[Cluster, ForgetfulStore]]:
    store = ForgetfulStore(SystemClock())
    async with running_cluster(tmp_path, store) as running:
        yield running, store


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_queue_has_is_answered_though_the_store_failed_once(
    forgetful: tuple[Cluster, ForgetfulStore], http: httpx.AsyncClient, stream: bool
) -> None:
    cluster, store = forgetful
    store.enqueues_to_fail = 1
    url = await cluster.gateway(limits=GatewayLimits(poll_s=0.1))
    answer = await http.post(f"{url}/v1/completions", json=COMPLETION | {"stream": stream})
    assert answer.status_code == 200
    assert '"finish_reason":"stop"' in answer.text


async def test_what_the_store_failed_to_index_is_indexed_later(
    forgetful: tuple[Cluster, ForgetfulStore], http: httpx.AsyncClient
) -> None:
    cluster, store = forgetful
    store.enqueues_to_fail = 1
    cluster.agent.working.clear()
    url = await cluster.gateway(limits=GatewayLimits(poll_s=0.1))
    waiting = asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION))
    await until(lambda: store.records(QUEUED))
    cluster.agent.working.set()
    assert (await waiting).status_code == 200


async def test_without_announcements_output_is_looked_up(
    forgetful: tuple[Cluster, ForgetfulStore], http: httpx.AsyncClient
) -> None:
    cluster, store = forgetful
    store.deaf = True
    url = await cluster.gateway(limits=GatewayLimits(poll_s=0.05, poll_max_s=0.1))
    cluster.agent.pause_at = 6
    async with http.stream("POST", f"{url}/v1/completions", json=COMPLETION | {"stream": True}) as response:
        events = Events(response)
        assert await events.text(until_text=ANSWER[:6]) == ANSWER[:6]
        cluster.agent.go.set()
        assert await events.text() == ANSWER[6:]


async def test_a_failure_of_the_gateway_is_found_in_its_log_by_what_the_client_heard(
    url: str,
    http: httpx.AsyncClient,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(id: RequestId) -> None:
        raise ZeroDivisionError(id)

    monkeypatch.setattr(cluster.store, "record", broken)
    answer = await http.get(f"{url}/v1/requests/r")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    named = [getattr(each, "request_id", "") for each in caplog.records]
    assert answer.headers["x-request-id"] in named


async def test_each_client_of_a_defect_is_answered_and_the_log_has_its_kind_once(
    http: httpx.AsyncClient,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(*_: object) -> None:
        raise errors.pop()

    counted: list[FaultKind] = []
    url = await cluster.gateway(faults=FaultLog(counted.append))
    monkeypatch.setattr(cluster.store, "record", broken)
    errors: list[Exception] = [ZeroDivisionError(n) for n in range(4)] + [TimeoutError(n) for n in range(4)]
    named = []
    while errors:
        answer = await http.get(f"{url}/v1/requests/r")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        named.append(answer.headers["x-request-id"])
    assert counted == [FaultKind.BUG] * 8
    assert len(set(named)) == 8
    lines = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert [getattr(each, "request_id", "") for each in lines] == [named[0], named[4]]
    assert all(each.exc_info for each in lines)


async def test_a_defect_in_the_middle_of_an_answer_cuts_it_and_is_logged_once(
    http: httpx.AsyncClient, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    counted: list[FaultKind] = []
    names = iter("abc")
    gateway = create_gateway(
        cluster.parts(new_id=lambda: RequestId(next(names)), faults=FaultLog(counted.append))
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"x-request-id", b"r")]})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
            raise ZeroDivisionError

    wrapped: Any = RequestIds(app, gateway, AccessRules())
    async with serving(create_server(wrapped, shutdown_s=1)) as url:
        for _ in range(3):
            with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
                await http.get(url)
    assert counted == [FaultKind.BUG] * 3
    (line,) = (each for each in caplog.records if each.levelno >= logging.WARNING)
    assert (line.getMessage(), bool(line.exc_info)) == ("request a failed: ZeroDivisionError()", True)

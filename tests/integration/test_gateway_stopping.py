"""A gateway that is told to stop while clients of all kinds wait: real HTTP, real store and queue."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from grpc import aio

from qlm.domain.ids import GatewayId, RequestId
from qlm.domain.outcome import Outcome
from qlm.gateway.http.app import app_of, create_app
from qlm.gateway.http.server import QuietServer, create_server, stop_serving
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from qlm.gateway.sessions.gateway import Gateway
from support.gateway import Cluster, running_cluster, until
from support.raw_http import HEALTH, POST
from support.rpc import Stream, rpc_gateway

COMPLETION: dict[str, Any] = {"model": "emulated", "prompt": "Hi"}
ANSWER = "Hello, world!"
LONG_S = 60.0
CLIENTS = 100


@dataclass(slots=True)
class ServedGateway:
    """A gateway that can be told to stop."""

    gateway: Gateway
    server: QuietServer
    serving: "asyncio.Task[None]"
    url: str

    def stop(self, *, notice_s: float = 0.0, grace_s: float = 0.0) -> "asyncio.Task[None]":
        ending = stop_serving(self.server, self.serving, self.gateway.hub, notice_s=notice_s, grace_s=grace_s)
        return asyncio.create_task(ending)


@contextlib.asynccontextmanager
async def opened(cluster: Cluster) -> AsyncIterator[ServedGateway]:
    app = create_app(cluster.parts("stopping"))
    server = create_server(app)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield ServedGateway(app.state.gateway, server, serving, f"http://127.0.0.1:{port}")
    finally:
        server.should_exit = True
        await serving


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


@pytest.fixture
async def served(cluster: Cluster) -> AsyncIterator[ServedGateway]:
    async with opened(cluster) as made:
        yield made


@pytest.fixture
async def other(cluster: Cluster) -> str:
    return await cluster.gateway()


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=20) as client:
        yield client


def text_of(lines: list[str]) -> str:
    """What a stream says in its complete events."""
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    return "".join(json.loads(each)["choices"][0]["text"] for each in data)


async def whole_answer(http: httpx.AsyncClient, url: str, id: str) -> str:
    """Wait at a gateway until a request has ended; return its text."""
    seen: dict[str, Any] = {}

    async def ended() -> bool:
        seen.update((await http.get(f"{url}/v1/requests/{id}")).raise_for_status().json())
        return bool(seen["status"] == "ended")

    await until(ended)
    return str(seen["response"]["choices"][0]["text"])


async def test_it_says_so_first_and_serves_on(served: ServedGateway, http: httpx.AsyncClient) -> None:
    ending = served.stop(notice_s=LONG_S)

    async def unready() -> bool:
        answer = await http.get(f"{served.url}/readyz")
        return answer.status_code == 503 and answer.json()["sessions"] == "stopping"

    await until(unready)
    answer = await http.post(f"{served.url}/v1/completions", json=COMPLETION)
    assert answer.json()["choices"][0]["text"] == ANSWER
    ending.cancel()  # told again: at once
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert served.serving.done()


async def test_who_waits_is_answered_within_the_grace(
    cluster: Cluster, served: ServedGateway, http: httpx.AsyncClient
) -> None:
    cluster.agent.pause_at = 5
    plain = asyncio.create_task(http.post(f"{served.url}/v1/completions", json=COMPLETION))
    seen: list[str] = []

    async def stream() -> None:
        body = {**COMPLETION, "stream": True}
        async with http.stream("POST", f"{served.url}/v1/completions", json=body) as answer:
            seen.extend([line async for line in answer.aiter_lines()])

    streaming = asyncio.create_task(stream())
    await until(lambda: len(cluster.agent.leased) == 2)
    ending = served.stop(grace_s=LONG_S)
    await until(lambda: not served.server.servers[0].sockets)
    with pytest.raises(httpx.ConnectError):
        await http.post(f"{served.url}/v1/completions", json=COMPLETION)
    cluster.agent.go.set()
    assert (await plain).json()["choices"][0]["text"] == ANSWER
    await streaming
    assert seen[-2:] == ["data: [DONE]", ""]
    await asyncio.wait_for(ending, LONG_S / 2)  # nobody waits any more: the rest of the grace is not used


def when_it_stops(patch: pytest.MonkeyPatch, server: QuietServer, do: Callable[[], None]) -> None:
    """Do something once a server has been told to stop, before it has the time to begin with that."""
    on_tick = server.on_tick

    async def tick(counter: int) -> bool:
        if ends := await on_tick(counter):
            do()
        return ends

    patch.setattr(server, "on_tick", tick)


def connected(served: ServedGateway) -> socket.socket:
    """Connect without a turn of the event loop: the connection waits to be accepted."""
    made = socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])))
    made.setblocking(False)
    return made


async def last_answer(client: socket.socket) -> tuple[int, bytes]:
    """Read until a connection ends; return the status and the body of its last answer."""
    loop, read = asyncio.get_running_loop(), b""
    with client:
        while piece := await asyncio.wait_for(loop.sock_recv(client, 65_536), 20):
            read += piece
    head, _, body = read.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), body


@pytest.mark.parametrize(("grace_s", "status"), [(LONG_S, 200), (0.0, 503)])
async def test_who_has_connected_and_asked_in_the_moment_of_the_stop_is_answered(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch, grace_s: float, status: int
) -> None:
    clients: list[socket.socket] = []
    body = json.dumps(COMPLETION).encode()

    def ask() -> None:
        for _ in range(CLIENTS):
            clients.append(connected(served))
            clients[-1].send(POST + b"content-length: %d\r\n\r\n" % len(body) + body)

    when_it_stops(monkeypatch, served.server, ask)
    ending = served.stop(grace_s=grace_s)
    await until(lambda: clients)
    answers = await asyncio.gather(*map(last_answer, clients))
    assert [each for each, _ in answers] == [status] * CLIENTS
    assert all(ANSWER.encode() in text or b"gateway_stopping" in text for _, text in answers)
    await asyncio.wait_for(ending, LONG_S / 2)


async def test_a_request_that_comes_on_an_open_connection_in_the_moment_of_the_stop_is_answered(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [connected(served) for _ in range(CLIENTS)]
    loop = asyncio.get_running_loop()
    for each in clients[::2]:  # every second one has asked before
        each.send(HEALTH)
        await loop.sock_recv(each, 65_536)
    await until(lambda: len(served.server.server_state.connections) == CLIENTS)

    def ask() -> None:
        for each in clients:
            each.send(HEALTH)

    when_it_stops(monkeypatch, served.server, ask)
    ending = served.stop(grace_s=LONG_S)
    answers = await asyncio.gather(*map(last_answer, clients))
    assert [each for each, _ in answers] == [200] * CLIENTS
    await asyncio.wait_for(ending, LONG_S / 2)


async def test_connections_without_a_request_do_not_keep_it_from_ending(served: ServedGateway) -> None:
    new, waits, asks = (connected(served) for _ in range(3))
    waits.send(HEALTH)
    asks.send(HEALTH[:20])
    await until(lambda: len(served.server.server_state.connections) == 3)
    with new, waits, asks:
        await asyncio.wait_for(served.stop(grace_s=LONG_S), LONG_S / 2)


async def test_after_the_grace_a_client_that_still_sends_is_sent_elsewhere_and_the_log_is_quiet(
    served: ServedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    reads, silent = connected(served), connected(served)
    for each in (reads, silent):
        each.send(POST + b"content-length: 100\r\n\r\n" + b"{")
    await until(lambda: len(served.server.server_state.tasks) == 2)
    ending = served.stop(grace_s=0.1)
    status, body = await last_answer(reads)
    assert (status, json.loads(body)["error"]["code"]) == (503, "gateway_stopping")
    with silent:  # and does not read either
        await asyncio.wait_for(ending, LONG_S / 2)
    assert served.server.lifespan.shutdown_event.is_set()  # else its task ends with a traceback
    assert not [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "once"}])
async def test_after_the_grace_a_plain_client_is_sent_elsewhere_and_its_request_goes_on(
    cluster: Cluster, served: ServedGateway, other: str, http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    cluster.agent.pause_at = 5
    plain = asyncio.create_task(http.post(f"{served.url}/v1/completions", json=COMPLETION, headers=headers))
    await until(lambda: cluster.agent.leased)
    await served.stop()
    answer = await plain
    assert answer.status_code == 503
    error, id = answer.json()["error"], answer.headers["x-request-id"]
    assert error["code"] == "gateway_stopping"
    assert id in error["message"]
    assert answer.headers["x-should-retry"] == "true"
    assert answer.headers["retry-after"] == "1"
    cluster.agent.go.set()
    assert await whole_answer(http, other, id) == ANSWER
    if headers:
        again = await http.post(f"{other}/v1/completions", json=COMPLETION, headers=headers)
        assert (again.headers["x-request-id"], again.json()["choices"][0]["text"]) == (id, ANSWER)
        assert len(cluster.agent.leased) == 1


async def test_after_the_grace_a_stream_is_cut_off_and_resumes_elsewhere(
    cluster: Cluster, served: ServedGateway, other: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.pause_at = 6
    lines: list[str] = []
    id = ""
    body, resumable = {**COMPLETION, "stream": True}, {"x-qlm-stream": "resumable"}
    ending: asyncio.Task[None] | None = None
    with pytest.raises(httpx.RemoteProtocolError):
        async with http.stream(
            "POST", f"{served.url}/v1/completions", json=body, headers=resumable
        ) as answer:
            id = answer.headers["x-request-id"]
            async for line in answer.aiter_lines():
                lines.append(line)
                if line == "id: 6" and ending is None:
                    ending = served.stop()
    assert ending is not None
    await ending
    assert "data: [DONE]" not in lines, "what was cut off must not look complete"
    assert await cluster.store.unwatch(RequestId(id), GatewayId("nobody")) == 0
    cluster.agent.go.set()
    more = await http.get(f"{other}/v1/requests/{id}/events", headers={"Last-Event-ID": "6"})
    assert text_of(lines) + text_of(more.text.splitlines()) == ANSWER
    assert more.text.endswith("data: [DONE]\n\n")


async def test_once_it_has_let_go_it_takes_no_session_any_more(
    served: ServedGateway, http: httpx.AsyncClient
) -> None:
    served.gateway.hub.interrupt_all()
    for body in (COMPLETION, {**COMPLETION, "stream": True}):
        answer = await http.post(f"{served.url}/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "gateway_stopping")


async def test_a_stream_over_grpc_has_the_grace_though_nobody_waits_over_http(cluster: Cluster) -> None:
    cluster.agent.pause_at = 5
    async with rpc_gateway(cluster) as (address, rpc_listener), aio.insecure_channel(address) as channel:
        server = create_server(app_of(rpc_listener.gateway))
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        call = QlmStub(channel).Generate(pb.GenerateRequest(**COMPLETION))
        stream = await Stream().read(call, until_tokens=5)
        times = {"notice_s": 0.0, "grace_s": LONG_S}
        closing = asyncio.create_task(rpc_listener.stop(**times))
        ending = asyncio.create_task(
            stop_serving(server, serving, rpc_listener.gateway.hub, beside=(closing,), **times)
        )
        await until(serving.done)
        cluster.agent.go.set()
        assert (await stream.read(call)).text == ANSWER
        await asyncio.wait_for(asyncio.gather(ending, closing), LONG_S / 2)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", COMPLETION | {"stop": " three", "max_tokens": 300}),
        ("responses", {"model": "emulated", "input": "Hi", "stop": " three", "background": True}),
    ],
)
async def test_a_request_in_the_background_ends_at_its_stop_string_at_another_gateway(
    cluster: Cluster,
    served: ServedGateway,
    other: str,
    http: httpx.AsyncClient,
    path: str,
    body: dict[str, Any],
) -> None:
    cluster.agent.answer = lambda request: b"one two three " * 20
    cluster.agent.pause_at = 3
    made = await http.post(f"{served.url}/v1/{path}", json=body, headers={"prefer": "respond-async"})
    id = made.json()["id"]
    looked_at = f"{other}/v1/{'requests' if path == 'completions' else path}/{id}"
    await until(lambda: cluster.agent.leased)
    await served.stop()
    assert (await http.get(looked_at)).json()["status"] in ("queued", "running", "in_progress")
    cluster.agent.pause_at = 60
    await until(lambda: list(cluster.agent.ended.values()) == [Outcome.STOP])

"""Calls of a task over both doors, to a real store and broker."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Broker
from qlm.domain.slo import DeadlineSlo
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from support.gateway import Cluster, running_cluster, until
from support.rpc import Stream, rpc_gateway
from support.rpc_calls import CODE, completion, refusal

LASTS_S = 600
SHORT_S = 5


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


def body(task: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "emulated", "prompt": "Hi", "slo": {"task": task}, **more}


async def test_both_doors_queue_equal_calls_and_show_their_task(cluster: Cluster) -> None:
    ends_s = int(time.time()) + LASTS_S
    task = {"id": "fix-tests", "deadline_at": ends_s, "calls_left": 3}
    async with httpx.AsyncClient(base_url=await cluster.gateway(), timeout=20) as http:
        answered = await http.post("/v1/completions", json=body(task, user="team-a"))
        assert answered.status_code == 200
        shown = (await http.get(f"/v1/requests/{answered.headers['x-request-id']}")).json()
    async with rpc_gateway(cluster) as (address, _), aio.insecure_channel(address) as channel:
        stub: Any = QlmStub(channel)
        slo = pb.Slo(task=pb.Task(id="fix-tests", deadline_at=Timestamp(seconds=ends_s), calls_left=3))
        stream = await Stream().read(stub.Generate(completion(slo=slo, user="team-a")))
        assert stream.started is not None
        status = (await stub.Get(pb.GetRequest(id=stream.started.id))).request
    by_http, by_rpc = cluster.agent.leased
    assert by_http.extensions == by_rpc.extensions
    assert (by_http.extensions.task_id, by_http.extensions.task_calls) == ("fix-tests", 2)
    for request in (by_http, by_rpc):
        assert isinstance(request.slo, DeadlineSlo)
        assert request.deadline_ns is not None
        assert request.arrival_ns < request.deadline_ns <= ends_s * 10**9
    assert shown["slo"]["task"] == {"id": "fix-tests", "deadline_s": ends_s, "calls_left": 3}
    assert status.slo.task == pb.TaskStatus(id="fix-tests", deadline_s=ends_s, calls_left=3)


async def test_both_doors_refuse_a_wrong_task_by_the_same_name(cluster: Cluster) -> None:
    past_s = int(time.time()) - 1
    wrong: list[tuple[dict[str, Any], str]] = [({"id": "t", "deadline_at": past_s}, "slo.task.deadline_at")]
    wrong += [({"id": "t", "deadline_at": past_s + LASTS_S, "calls_left": 0}, "slo.task.calls_left")]
    wrong += [({"id": "t" * 101, "deadline_at": past_s + LASTS_S}, "slo.task.id")]
    wrong += [({"deadline_at": past_s + LASTS_S}, "slo.task.id"), ({"id": "t"}, "slo.task.deadline_at")]
    async with rpc_gateway(cluster) as (address, _), aio.insecure_channel(address) as channel:
        stub: Any = QlmStub(channel)
        async with httpx.AsyncClient(base_url=await cluster.gateway(), timeout=20) as http:
            for task, field in wrong:
                refused = await http.post("/v1/completions", json=body(task))
                assert refused.status_code == 400
                assert refused.json()["error"]["param"] == field
                given = dict(task)
                if "deadline_at" in task:
                    given["deadline_at"] = Timestamp(seconds=task["deadline_at"])
                failure = await refusal(stub.Generate(completion(slo=pb.Slo(task=pb.Task(**given)))))
                assert failure.code is CODE.INVALID_ARGUMENT
                assert field in failure.message


async def test_operators_list_the_calls_of_a_task(cluster: Cluster) -> None:
    ends_s = int(time.time()) + LASTS_S
    url = await cluster.gateway()
    async with (
        httpx.AsyncClient(base_url=url, timeout=20) as http,
        httpx.AsyncClient(base_url=cluster.admin_urls[url], timeout=20) as admin,
    ):
        for id in ("one", "other", "one"):
            sent = await http.post("/v1/completions", json=body({"id": id, "deadline_at": ends_s}))
            assert sent.status_code == 200
        listed = (await admin.get("/admin/v1/requests", params={"task": "one"})).json()["requests"]
    assert [each["slo"]["task"]["id"] for each in listed] == ["one", "one"]
    assert all(each["slo"]["task"]["calls_left"] is None for each in listed)


@pytest.mark.parametrize("n", [1, 2])
async def test_a_retry_after_the_deadline_gets_the_answer_of_the_first_attempt(
    cluster: Cluster, n: int
) -> None:
    ends_s = time.time() + SHORT_S
    asked = body({"id": "task", "deadline_at": ends_s}, n=n)
    async with httpx.AsyncClient(base_url=await cluster.gateway(), timeout=20) as http:
        keyed = {"idempotency-key": "again"}
        first = await http.post("/v1/completions", json=asked, headers=keyed)
        assert first.status_code == 200
        await until(lambda: time.time() > ends_s)
        again = await http.post("/v1/completions", json=asked, headers=keyed)
        assert again.status_code == 200, again.text
        assert again.headers["x-request-id"] == first.headers["x-request-id"]
        assert again.json()["choices"] == first.json()["choices"]
        refused = await http.post("/v1/completions", json=asked)
        assert refused.json()["error"]["param"] == "slo.task.deadline_at"


class AwayAtFirst:
    """Refuses the first messages; else as the broker it stands before."""

    def __init__(self, broker: Broker, refusals: int) -> None:
        self._broker = broker
        self.left = refusals

    async def publish(self, queue: QueueName, body: bytes) -> None:
        if self.left:
            self.left -= 1
            raise BrokerUnavailableError("connection refused")
        await self._broker.publish(queue, body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


@pytest.mark.parametrize("n", [1, 2])
async def test_calls_that_the_queue_refuses_are_no_calls_of_their_task(cluster: Cluster, n: int) -> None:
    """Each retry during an outage counted as one more, and later tasks were taken for as long."""
    ends_s, broker = int(time.time()) + LASTS_S, AwayAtFirst(cluster.broker, 4 * n)
    url = await cluster.gateway(broker=cast("Broker", broker))
    async with httpx.AsyncClient(base_url=url, timeout=20) as http:
        first = body({"id": "seen", "deadline_at": ends_s}, n=n)
        while broker.left:
            assert (await http.post("/v1/completions", json=first)).status_code == 503
        for task in (
            {"id": "seen", "deadline_at": ends_s, "calls_left": 1},
            {"id": "new", "deadline_at": ends_s},
        ):
            assert (await http.post("/v1/completions", json=body(task, n=n))).status_code == 200
    due_ns = cluster.agent.leased[-1].deadline_ns
    assert due_ns is not None
    assert due_ns == pytest.approx(ends_s * 10**9, abs=10**4), "no call follows: the task seen had one"


async def test_refused_calls_are_no_calls_of_their_task(cluster: Cluster) -> None:
    ends_s = int(time.time()) + LASTS_S
    async with httpx.AsyncClient(base_url=await cluster.gateway(), timeout=20) as http:
        too_long = body({"id": "seen", "deadline_at": ends_s}, max_tokens=999_999)
        for _ in range(5):
            assert (await http.post("/v1/completions", json=too_long)).status_code == 400
        for task in (
            {"id": "seen", "deadline_at": ends_s, "calls_left": 1},
            {"id": "new", "deadline_at": ends_s},
        ):
            assert (await http.post("/v1/completions", json=body(task))).status_code == 200
    due_ns = cluster.agent.leased[-1].deadline_ns
    assert due_ns is not None
    assert due_ns == pytest.approx(ends_s * 10**9, abs=10**4), "no call follows: the task seen had one"

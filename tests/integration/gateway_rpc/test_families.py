"""Requests for several answers, which come over HTTP, at the calls of gRPC."""

import httpx
import pytest

from qlm.domain.ids import RequestId
from qlm.domain.outcome import Outcome
from qlm.gateway.api.ids import member_id
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from support.gateway import Cluster, until


@pytest.fixture
async def family(cluster: Cluster) -> RequestId:
    """Return the id of a request for three answers that run."""
    cluster.agent.pause_at = 6
    url = await cluster.gateway()
    async with httpx.AsyncClient() as http:
        body = {"model": "emulated", "prompt": "Hi", "n": 3}
        made = await http.post(f"{url}/v1/completions", json=body, headers={"prefer": "respond-async"})
    await until(lambda: len(cluster.agent.leased) == 3)
    return RequestId(made.json()["id"])


async def test_cancelling_ends_all_answers(cluster: Cluster, stub: QlmStub, family: RequestId) -> None:
    cancelled = await stub.Cancel(pb.CancelRequest(id=family))
    assert cancelled.request.id == family and cancelled.request.cancel_requested
    await until(lambda: list(cluster.agent.ended.values()) == [Outcome.CANCELLED] * 3)


async def test_one_runs_until_all_answers_have_ended_and_ends_as_the_worst(
    cluster: Cluster, stub: QlmStub, family: RequestId
) -> None:
    second = member_id(family, 1)
    await cluster.store.cancel(second)
    await until(lambda: cluster.agent.ended.get(second) is Outcome.CANCELLED)
    asked = pb.GetRequest(id=family)
    running = await stub.Get(asked)
    assert (running.request.id, running.request.status) == (family, "running")
    cluster.agent.go.set()
    await until(lambda: len(cluster.agent.ended) == 3)
    ended = await stub.Get(asked)
    assert (ended.request.id, ended.request.outcome) == (family, "cancelled")
    assert ended.error.code and not ended.HasField("answer")

"""A gateway over gRPC whose broker or store fails."""

import asyncio
from typing import Any

import pytest
from grpc import aio

from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.ids import RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.request import RequestState
from qlm.domain.shell.faults import FaultKind, FaultLog
from qlm.domain.view import RequestFilter
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from support.gateway import Cluster, until
from support.rpc import rpc_gateway
from support.rpc_calls import CODE, completion, health_is, refusal

ENDED = RequestFilter(state=RequestState.ENDED)


class BrokenBroker:
    """Passes everything on, but confirms nothing."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def publish(self, queue: object, body: bytes) -> None:
        raise BrokerUnavailableError("no connection")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def test_without_the_queue_calls_are_unavailable_and_health_says_so(cluster: Cluster) -> None:
    broken: Any = BrokenBroker(cluster.broker)
    async with (
        rpc_gateway(cluster, broker=broken) as (address, _),
        aio.insecure_channel(address) as channel,
    ):
        failure = await refusal(QlmStub(channel).Generate(completion()))
        assert (failure.code, failure.reason, failure.retry_ms) == (
            CODE.UNAVAILABLE,
            "broker_unavailable",
            1000,
        )
        await until(lambda: health_is(channel, "NOT_SERVING"))


async def test_health_is_asked_on_after_a_failure_nobody_foresaw(cluster: Cluster) -> None:
    broken: Any = FailsOnce(cluster.broker)
    async with (
        rpc_gateway(cluster, broker=broken) as (address, _),
        aio.insecure_channel(address) as channel,
    ):
        await until(lambda: health_is(channel, "SERVING"))
    assert broken.failed


class FailsOnce:
    """Its first look at a queue ends in an error that is none of a broker's."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.failed = False

    async def depth(self, queue: object) -> int:
        if not self.failed:
            self.failed = True
            raise RuntimeError("the connection is in a state nobody thought of")
        depth: int = await self._inner.depth(queue)
        return depth

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class SlowBroker(BrokenBroker):
    """Confirms when it is let."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def publish(self, queue: object, body: bytes) -> None:
        self.asked.set()
        await self.go.wait()
        await self._inner.publish(queue, body)


async def test_a_client_that_leaves_before_its_request_is_queued_leaves_nothing_behind(
    cluster: Cluster,
) -> None:
    """What is on its way to the queue gets there, and is then cancelled."""
    slow: Any = SlowBroker(cluster.broker)
    cluster.agent.pause_at = 6
    async with (
        rpc_gateway(cluster, broker=slow) as (address, _),
        aio.insecure_channel(address) as channel,
    ):
        stub = QlmStub(channel)
        call = stub.Generate(completion(resume_grace_s=0))
        await slow.asked.wait()
        call.cancel()
        await stub.ListQueues(pb.ListQueuesRequest())  # on its connection, so it comes after the cancel
        slow.go.set()
        await until(lambda: cluster.store.records(ENDED))
    (record,) = await cluster.store.records(ENDED)
    assert record.outcome is Outcome.CANCELLED


async def test_a_failure_of_the_gateway_is_internal_counted_and_in_its_log(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counted: list[FaultKind] = []

    async def broken(id: RequestId) -> None:
        raise ZeroDivisionError(id)

    monkeypatch.setattr(cluster.store, "record", broken)
    async with (
        rpc_gateway(cluster, faults=FaultLog(counted.append)) as (address, _),
        aio.insecure_channel(address) as channel,
    ):
        failure, again = [await refusal(QlmStub(channel).Get(pb.GetRequest(id="r"))) for _ in range(2)]
    assert counted == [FaultKind.BUG] * 2
    assert (failure.code, failure.reason) == (CODE.INTERNAL, "internal_error")
    assert failure.message == "the gateway failed (ZeroDivisionError); see its log"
    (line,) = (each for each in caplog.records if each.exc_info)
    assert "ZeroDivisionError" in caplog.text
    assert getattr(line, "request_id", "") == failure.trailers["x-request-id"]
    assert f"gRPC call {again.trailers['x-request-id']} failed: ZeroDivisionError" in caplog.text

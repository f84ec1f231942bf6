"""Beside the calls: health, the stop, reflection, metrics, TLS."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from qlm.domain.ids import RequestId
from qlm.gateway.api.fields.service import Readiness
from qlm.gateway.rpc import server
from qlm.gateway.rpc.server import RpcListener, RpcPortError
from qlm.gateway.rpc.service import SERVICE
from qlm.gateway.rpc.tls import TlsFiles
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from qlm.gateway.sessions.gateway import Gateway, create_gateway
from support.certificates import certificate
from support.gateway import Cluster, until
from support.rpc import Stream, rpc_gateway
from support.rpc_calls import ANSWER, CODE, completion, health_is, refusal


async def test_health_is_serving_once_ready_and_not_when_stopping(cluster: Cluster) -> None:
    async with (
        rpc_gateway(cluster, shutdown_s=5) as (address, listener),
        aio.insecure_channel(address) as channel,
    ):
        await until(lambda: health_is(channel, "SERVING"))
        await until(lambda: health_is(channel, "SERVING", ""))
        asked = health_pb2.HealthCheckRequest(service=SERVICE)
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(asked)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        stopping = asyncio.create_task(listener.stop(0, 0.1))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await stopping


async def test_a_bug_in_the_look_at_readiness_is_logged_once_and_passes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed = 0

    async def fail(_: Gateway) -> Readiness:
        nonlocal failed
        failed += 1
        raise ZeroDivisionError

    monkeypatch.setattr(server, "HEALTH_INTERVAL_S", 0.01)
    with monkeypatch.context() as broken:
        broken.setattr(server, "readiness", fail)
        async with rpc_gateway(cluster) as (address, _), aio.insecure_channel(address) as channel:
            await until(lambda: failed > 2)
            await until(lambda: health_is(channel, "NOT_SERVING"))
            broken.undo()
            await until(lambda: health_is(channel, "SERVING"))
    assert sum("readiness" in record.getMessage() for record in caplog.records) == 1


async def test_a_gateway_that_stops_tells_its_streams_to_go_on_elsewhere(cluster: Cluster) -> None:
    cluster.agent.pause_at = 6
    async with (
        rpc_gateway(cluster) as (address, listener),
        rpc_gateway(cluster) as (other, _),
        aio.insecure_channel(address) as channel,
        aio.insecure_channel(other) as second,
    ):
        call = QlmStub(channel).Generate(completion())
        stream = await Stream().read(call, until_tokens=6)
        await listener.stop(0, 0.05)
        failure = await refusal(call)
        assert (failure.code, failure.reason) == (CODE.UNAVAILABLE, "gateway_stopping")
        assert stream.started is not None
        resumed = QlmStub(second).Resume(pb.ResumeRequest(id=stream.started.id, offset=6))
        cluster.agent.go.set()
        assert stream.text + (await Stream().read(resumed)).text == ANSWER


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_lists_the_service_and_describes_its_calls(address: str, version: str) -> None:
    async with aio.insecure_channel(address) as channel:
        asked = reflection_pb2.ServerReflectionRequest
        call: Any = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=asked.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )(iter((asked(list_services=""), asked(file_containing_symbol="qlm.v1.Qlm"))))
        listed, described = [answer async for answer in call]
    names = {service.name for service in listed.list_services_response.service}
    assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    (file, *_) = described.file_descriptor_response.file_descriptor_proto
    assert file == pb.DESCRIPTOR.serialized_pb


async def test_metrics_count_calls_as_they_count_http(cluster: Cluster) -> None:
    async with rpc_gateway(cluster) as (address, listener), aio.insecure_channel(address) as channel:
        await Stream().read(QlmStub(channel).Generate(completion()))
        shown = metrics_of(listener)
        await until(lambda: "qlm_gateway_open_streams 0.0" in metrics_of(listener))
    for line in (
        'qlm_gateway_accepted_total{kind="stream",model="emulated",slo_class="deadline-60s"} 1.0',
        'qlm_gateway_requests_total{model="emulated",outcome="stop",slo_class="deadline-60s"} 1.0',
        'qlm_gateway_time_to_first_token_seconds_count{model="emulated",slo_class="deadline-60s"} 1.0',
        'qlm_gateway_tokens_total{model="emulated",side="completion"} 14.0',
    ):
        assert line in shown


def metrics_of(listener: RpcListener) -> str:
    return listener.gateway.metrics.render().decode()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


async def test_tls_by_files_is_what_clients_verify(cluster: Cluster, pair: tuple[Path, Path]) -> None:
    cert, key = (path.read_bytes() for path in pair)
    async with rpc_gateway(cluster, tls=TlsFiles(cert=cert, key=key)) as (address, _):
        port = address.rpartition(":")[2]
        async with aio.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(cert)) as channel:
            assert (await Stream().read(QlmStub(channel).Generate(completion()))).text == ANSWER
        async with aio.insecure_channel(address) as channel:
            with pytest.raises(aio.AioRpcError) as caught:
                await Stream().read(QlmStub(channel).Generate(completion()))
            assert caught.value.code() is CODE.UNAVAILABLE


async def test_a_port_in_use_is_an_error(cluster: Cluster, address: str) -> None:
    gateway = create_gateway(cluster.parts(new_id=_no_id))
    listener = RpcListener(gateway)
    with pytest.raises(RpcPortError, match=address):
        await listener.start("127.0.0.1", int(address.rpartition(":")[2]))
    await listener.stop(0, 0)


def _no_id() -> RequestId:
    raise AssertionError("no request comes here")

"""A gateway over real gRPC: grpc.aio on loopback, a real store and broker, and HTTP beside it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from grpc import aio

from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from support.gateway import Cluster, running_cluster
from support.rpc import rpc_gateway


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


@pytest.fixture
async def address(cluster: Cluster) -> AsyncIterator[str]:
    async with rpc_gateway(cluster) as (made, _):
        yield made


@pytest.fixture
async def stub(address: str) -> AsyncIterator[QlmStub]:
    async with aio.insecure_channel(address) as channel:
        yield QlmStub(channel)

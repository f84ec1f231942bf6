"""Clients that send too much, too slowly or too often to the gRPC listener; frames of HTTP/2 as they are."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from grpc import aio

from qlm.gateway.core.connection_limits import ConnectionLimits
from qlm.gateway.rpc.options import PING_STRIKES_MAX
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from support.gateway import Cluster, running_cluster
from support.rpc import rpc_gateway

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7
CONCURRENT_STREAMS: Final = 3
CALM_DOWN: Final = 0xB


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


def frame(kind: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, 0)) + bytes(4) + payload


class RawClient:
    """A client that writes and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, address: str) -> "RawClient":
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def greet(self) -> bytes:
        """Begin HTTP/2; return the server's settings."""
        self.writer.write(PREFACE + frame(SETTINGS))
        return await self.next(SETTINGS)

    async def next(self, kind: int) -> bytes:
        """Return the payload of the next frame of a kind."""
        while True:
            head = await asyncio.wait_for(self._reader.readexactly(9), 20)
            payload = await asyncio.wait_for(self._reader.readexactly(int.from_bytes(head[:3], "big")), 20)
            if head[3] == kind:
                return payload

    async def ended(self) -> None:
        """Wait until the server ends the connection."""
        with contextlib.suppress(ConnectionError):
            while await asyncio.wait_for(self._reader.read(65_536), 20):
                pass
        self.writer.close()


async def call(address: str, note: str) -> grpc.StatusCode:
    """Ask for a request that is unknown, with metadata of some length; return the status."""
    async with aio.insecure_channel(address) as channel:
        try:
            await QlmStub(channel).Get(pb.GetRequest(id="unknown"), metadata=(("x-note", note),), timeout=20)
        except aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def test_metadata_has_a_limit(cluster: Cluster) -> None:
    limits = ConnectionLimits(header_bytes_max=24 * 1024)
    async with rpc_gateway(cluster, connections=limits) as (address, _):
        assert await call(address, "n" * 22 * 1024) is grpc.StatusCode.NOT_FOUND
        assert await call(address, "n" * 26 * 1024) is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_calls_at_a_time_on_a_connection_have_a_limit(cluster: Cluster) -> None:
    async with rpc_gateway(cluster, connections=ConnectionLimits(streams_max=7)) as (address, _):
        client = await RawClient.connect(address)
        settings = dict(struct.iter_unpack(">HI", await client.greet()))
        assert settings[CONCURRENT_STREAMS] == 7
        client.writer.close()


async def test_pings_without_end_end_the_connection(cluster: Cluster) -> None:
    async with rpc_gateway(cluster) as (address, _):
        client = await RawClient.connect(address)
        await client.greet()
        client.writer.write(frame(PING, bytes(8)) * (PING_STRIKES_MAX + 2))
        goaway = await client.next(GOAWAY)
        assert int.from_bytes(goaway[4:8], "big") == CALM_DOWN
        await client.ended()


async def test_a_connection_that_does_not_speak_is_closed(cluster: Cluster) -> None:
    async with rpc_gateway(cluster, connections=ConnectionLimits(headers_timeout_s=0.5)) as (address, _):
        await (await RawClient.connect(address)).ended()


async def test_a_connection_without_calls_is_closed(cluster: Cluster) -> None:
    async with rpc_gateway(cluster, connections=ConnectionLimits(idle_timeout_s=1)) as (address, _):
        client = await RawClient.connect(address)
        await client.greet()
        await client.next(GOAWAY)
        client.writer.close()


async def test_connections_have_a_limit(cluster: Cluster) -> None:
    async with rpc_gateway(cluster, connections=ConnectionLimits(connections_max=2)) as (address, _):
        clients: list[Any] = []
        for _ in range(2):
            clients.append(await RawClient.connect(address))
            await clients[-1].greet()
        await (await RawClient.connect(address)).ended()
        for client in clients:
            client.writer.close()

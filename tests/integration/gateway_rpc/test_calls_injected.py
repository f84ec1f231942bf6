"""Failures of every kind at every call that every RPC makes: a status as documented, and no more.

The RPCs are those of the service; a new one fails here until it is known how it is called.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from grpc import aio

from qlm.domain.ports.api_keys import ApiKeys, Scope
from qlm.gateway.core.access import AccessRules
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.keys.secret import make_key
from qlm.gateway.rpc import server
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from simulation.injection import ERRORS, EVERY, Failure, Injector, Site, When, errors_of
from support.api_key_reads import read_keys_each_time
from support.gateway import Cluster, running_cluster, until
from support.rpc import Failure as Refusal
from support.rpc import Stream, rpc_gateway
from support.rpc_calls import CODE, completion, health_is

METHODS: Final = [method.name for method in pb.DESCRIPTOR.services_by_name["Qlm"].methods]
EACH_METHOD: Final = pytest.mark.parametrize("method", METHODS)

PORTS: Final = ("store", "broker")
OUTAGE_S: Final = 0.2
WITHOUT_END: Final = 1_000_000

Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class World:
    """A gateway whose calls may fail, and a client of it."""

    cluster: Cluster
    injector: Injector
    channel: aio.Channel
    metadata: Metadata

    async def ask(self, method: str, request: Any, metadata: Metadata | None = None) -> Refusal | None:
        """Call a method to its end; return its status unless that is OK."""
        sent = self.metadata if metadata is None else metadata
        call = getattr(QlmStub(self.channel), method)(request, metadata=sent)
        try:
            await (Stream().read(call) if isinstance(call, aio.UnaryStreamCall) else call)
        except aio.AioRpcError as error:
            return Refusal(error)
        return None


@contextlib.asynccontextmanager
async def failing_gateway(folder: Path, *, keys_required: bool = False) -> AsyncIterator[World]:
    injector = Injector()
    async with running_cluster(folder) as cluster:
        store = cluster.store
        key, secret = make_key("a", list(Scope), None, 0, secrets.token_hex)
        await store.add_api_key(key)
        cluster.store = injector.wrap("gateway", "store", store)
        async with (
            rpc_gateway(
                cluster,
                broker=injector.wrap("gateway", "broker", cluster.broker),
                rules=AccessRules(keys_required=keys_required, token="x" if keys_required else None),
                limits=GatewayLimits(view_interval_s=0.2),
            ) as (address, _),
            aio.insecure_channel(address) as channel,
        ):
            cluster.store = store
            metadata = [("authorization", f"Bearer {secret}")] if keys_required else []
            yield World(cluster, injector, channel, metadata)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with failing_gateway(tmp_path) as made:
        yield made


@pytest.fixture
async def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A gateway that asks for API keys, and reads them for each call."""
    read_keys_each_time(monkeypatch)
    async with failing_gateway(tmp_path, keys_required=True) as made:
        yield made


async def an_id(world: World) -> str:
    """Send a request, and return its id once it is answered."""
    call = QlmStub(world.channel).Generate(completion(), metadata=world.metadata)
    stream = await Stream().read(call)
    assert stream.ended is not None and stream.started is not None
    return str(stream.started.id)


async def request_of(world: World, method: str) -> Any:
    """Return what is sent to a method."""
    match method:
        case "Generate":
            return completion()
        case "Resume":
            return pb.ResumeRequest(id=await an_id(world))
        case "Get":
            return pb.GetRequest(id=await an_id(world))
        case "Cancel":
            return pb.CancelRequest(id=await an_id(world))
        case "ListQueues":
            return pb.ListQueuesRequest()
    raise ValueError(f"how is {method} called?")


async def ask(world: World, method: str, failure: Failure | None, lasting_s: float) -> Refusal | None:
    """Call a method while calls of the gateway fail, but not for longer than that."""
    request = await request_of(world, method)
    world.injector.begin_anew(failure)
    asking = asyncio.create_task(world.ask(method, request))
    await asyncio.wait({asking}, timeout=lasting_s)
    world.injector.failure = None
    return await asking


def failures(calls: dict[Site, int]) -> Iterator[Failure]:
    """Yield a failure of each kind before and after the first call of each site."""
    for site in sorted(calls):
        for error in errors_of(site):
            for when in When:
                yield Failure(site, error, when, first=0, count=1)


def wrong(refusal: Refusal | None, failure: Failure) -> str | None:
    """Return how the status of a call that failed is not as documented."""
    if refusal is None:
        return None
    said = f"{refusal.code.name} {refusal.reason}: {refusal.message}"
    if not refusal.reason or "x-request-id" not in refusal.trailers:
        return f"without details: {said}"
    if refusal.code is CODE.UNAVAILABLE and not refusal.retry_ms:
        return f"without a delay: {said}"
    if refusal.code is CODE.INTERNAL and "Unavailable" in failure.error.__name__:
        return f"for a part that is away: {said}"
    return said if refusal.code is CODE.UNKNOWN else None


def lines_of(broken: dict[Failure, str]) -> str:
    """Return a line for each failure that broke something."""
    return "\n".join(f"{failure}: {found}" for failure, found in broken.items())


@EACH_METHOD
async def test_a_failed_call_costs_its_own_request_a_status(world: World, method: str) -> None:
    assert await ask(world, method, None, 60) is None
    broken = {}
    calls = dict(world.injector.calls)
    assert calls
    for failure in failures(calls):
        if found := wrong(await ask(world, method, failure, 60), failure):
            broken[failure] = found
    assert not broken, lines_of(broken)
    await an_id(world)


@EACH_METHOD
async def test_an_outage_costs_what_is_asked_while_it_lasts(
    world: World, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEALTH_INTERVAL_S", 0.02)
    broken = {}
    for port in PORTS:
        for error in ERRORS[port]:
            await until(lambda: health_is(world.channel, "SERVING"))
            failure = Failure(Site("gateway", port, EVERY), error, When.BEFORE, 0, WITHOUT_END)
            if found := wrong(await ask(world, method, failure, OUTAGE_S), failure):
                broken[failure] = found
            world.injector.begin_anew(failure)
            await until(lambda: health_is(world.channel, "NOT_SERVING"))
            world.injector.begin_anew(None)
    assert not broken, lines_of(broken)
    await until(lambda: health_is(world.channel, "SERVING"))
    assert await ask(world, method, None, 60) is None


@EACH_METHOD
async def test_keys_that_are_known_count_whatever_the_failure_of_their_read(
    guarded: World, method: str
) -> None:
    assert await ask(guarded, method, None, 60) is None
    site = Site("gateway", "store", ApiKeys.api_keys.__name__)
    for failure in failures({site: 1}):
        assert await ask(guarded, method, failure, 60) is None, failure
        assert guarded.injector.hits, failure


@EACH_METHOD
@pytest.mark.parametrize("error", ERRORS["store"])
async def test_unknown_keys_are_not_wrong_while_keys_cannot_be_read(
    guarded: World, method: str, error: type[Exception]
) -> None:
    request = await request_of(guarded, method)
    unknown = [("authorization", "Bearer sk-qlm-unknown")]
    site = Site("gateway", "store", ApiKeys.api_keys.__name__)
    guarded.injector.begin_anew(Failure(site, error, When.BEFORE, 0, WITHOUT_END))
    refusal = await guarded.ask(method, request, unknown)
    assert refusal is not None
    assert (refusal.code, refusal.reason) == (CODE.UNAVAILABLE, "store_unavailable")
    guarded.injector.begin_anew(None)
    refusal = await guarded.ask(method, request, unknown)
    assert refusal is not None
    assert refusal.code is CODE.UNAUTHENTICATED

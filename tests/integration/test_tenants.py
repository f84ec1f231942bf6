"""API keys over real HTTP and gRPC: one tenant neither reads, cancels nor finds what another one has.

The calls are those of the code: each route with an id, and each method of the gRPC service, is tried on the
objects of another tenant. A new one fails here until it is known which objects it names.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc
import httpx
import orjson
import pytest
import pytest_asyncio
from click.testing import CliRunner, Result
from grpc import aio
from openai import AsyncOpenAI, AuthenticationError, NotFoundError, PermissionDeniedError

from qlm.cli.main import main
from qlm.domain.ids import RequestId
from qlm.domain.request import RequestState
from qlm.gateway.core.access import AccessRules
from qlm.gateway.files.disk.storage import storage_in
from qlm.gateway.http.routes import ADMIN_ROUTES, PUBLIC_ROUTES
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from support.gateway import Cluster, SystemClock, running_cluster, until
from support.raw_http import Client
from support.rpc import Stream, rpc_gateway

RULES: Final = AccessRules(keys_required=True)
TOKEN: Final = "of-the-operators-0"
PAUSE_TOKENS: Final = 3
"""Output tokens after which answers wait, and longer ones never end."""

BODY: Final[dict[str, Any]] = {"model": "emulated", "prompt": "Hi", "max_tokens": PAUSE_TOKENS - 1}
RESPONSE: Final = {"model": "emulated", "input": "Hi", "max_output_tokens": 2}
LINE: Final[dict[str, Any]] = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/completions",
    "body": BODY | {"user": "b"},
}
LONG: Final = BODY | {"max_tokens": 20}

SHORT: Final = {"expires_in_s": 1}
"""Lifetime of a key that expires while a test waits."""

OPEN: Final = {"/health", "/healthz", "/readyz", "/version", "/openapi.json", "/docs"}
"""Paths for anyone."""

OF_NO_TENANT: Final = {"/v1/models/{id:path}"}
"""Routes with an id of something that all tenants share."""

CODE: Final = grpc.StatusCode

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True, slots=True)
class Party:
    """A tenant with its key.

    Attributes:
        http: Client that sends the key.
        headers: As it sends it.
    """

    http: httpx.AsyncClient
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class World:
    """A gateway that asks for keys, and clients of two tenants."""

    cluster: Cluster
    url: str
    rpc_address: str
    admin: httpx.AsyncClient
    a: Party
    b: Party
    anyone: httpx.AsyncClient


async def key(admin: httpx.AsyncClient, tenant: str, **more: Any) -> str:
    answer = await admin.post("/admin/v1/keys", json={"tenant": tenant, **more})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["secret"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("world")
    async with running_cluster(folder) as cluster, contextlib.AsyncExitStack() as stack:
        cluster.agent.pause_at = PAUSE_TOKENS
        storage = storage_in(folder / "files", SystemClock())
        url = await cluster.gateway(rules=RULES, admin_rules=AccessRules(token=TOKEN), storage=storage)
        # Started with the store: a later one does not know for a while which requests are unknown.
        rules = AccessRules(keys_required=True, token=TOKEN)
        rpc_address, _ = await stack.enter_async_context(rpc_gateway(cluster, rules=rules))

        async def client(base_url: str, secret: str | None) -> httpx.AsyncClient:
            headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
            made = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=20)
            return await stack.enter_async_context(made)

        admin = await client(cluster.admin_urls[url], TOKEN)

        async def party(tenant: str) -> Party:
            secret = await key(admin, tenant)
            return Party(await client(url, secret), {"authorization": f"Bearer {secret}"})

        a, b, anyone = await party("a"), await party("b"), await client(url, None)
        yield World(cluster, url, rpc_address, admin, a, b, anyone)


async def running_request(world: World, party: Party) -> RequestId:
    """Send a request that waits in the middle of its answer; return its id."""
    answer = await party.http.post("/v1/completions", json=LONG, headers={"prefer": "respond-async"})
    assert answer.status_code == 202, answer.text
    id = RequestId(answer.json()["id"])

    async def runs() -> bool:
        record = await world.cluster.store.record(id)
        return record is not None and record.output_tokens == PAUSE_TOKENS

    await until(runs)
    return id


async def ended_request(party: Party) -> str:
    answer = await party.http.post("/v1/completions", json=BODY)
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-request-id"])


async def ended_response(party: Party) -> str:
    answer = await party.http.post("/v1/responses", json=RESPONSE)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def objects(world: World, party: Party) -> dict[str, list[str]]:
    """Return ids of all kinds of objects of a tenant, by the beginning of the routes that name them."""
    ended = await ended_request(party)
    form = {"file": ("in.jsonl", orjson.dumps(LINE) + b"\n")}
    file = (await party.http.post("/v1/files", files=form, data={"purpose": "batch"})).json()["id"]
    batch = {"input_file_id": file, "endpoint": LINE["url"], "completion_window": "1h"}
    return {
        "/v1/requests/": [await running_request(world, party), ended, f"cmpl-{ended}"],
        "/v1/responses/": [await ended_response(party)],
        "/v1/files/": [file],
        "/v1/batches/": [(await party.http.post("/v1/batches", json=batch)).json()["id"]],
    }


def error(answer: httpx.Response) -> tuple[int, str]:
    body = answer.json()
    if answer.request.url.path.startswith("/v1/messages"):
        assert body["type"] == "error"  # Anthropic's shape
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return answer.status_code, body["error"]["code"]


# --- without a good key


async def test_every_route_asks_for_a_key(world: World) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
        for method, path, _ in PUBLIC_ROUTES:
            answer = await world.anyone.request(method, path.replace("{id}", "x"), headers=headers)
            if path in OPEN:
                assert answer.status_code == 200
            else:
                assert error(answer) == (401, "invalid_api_key")
                assert answer.headers["www-authenticate"] == "Bearer"
        assert error(await world.anyone.get("/v1/nowhere", headers=headers)) == (401, "invalid_api_key")


async def test_a_key_for_operators_alone_is_no_key_of_clients(world: World) -> None:
    secret = await key(world.admin, "ops", scopes=["admin"])
    headers = {"authorization": f"Bearer {secret}"}
    assert error(await world.anyone.get("/v1/models", headers=headers)) == (403, "missing_scope")
    admin_url = world.cluster.admin_urls[world.url]
    async with httpx.AsyncClient(base_url=admin_url) as operators:
        assert (await operators.get("/admin/v1/queues", headers=headers)).status_code == 200
        for method, path, _ in ADMIN_ROUTES:
            refused = await operators.request(method, path.replace("{id}", "x"), headers=world.a.headers)
            assert error(refused) == (403, "missing_scope")
            refused = await operators.request(method, path.replace("{id}", "x"))
            assert error(refused) == (401, "admin_token_required")


async def test_the_sdk_understands_the_refusals(world: World) -> None:
    operators = await key(world.admin, "ops", scopes=["admin"])
    for secret, expected in (("sk-wrong", AuthenticationError), (operators, PermissionDeniedError)):
        async with AsyncOpenAI(base_url=f"{world.url}/v1", api_key=secret, max_retries=0) as client:
            with pytest.raises(expected):
                await client.models.list()
    theirs = await ended_request(world.b)
    async with AsyncOpenAI(
        base_url=f"{world.url}/v1", api_key="-", default_headers=world.a.headers, max_retries=0
    ) as client:
        with pytest.raises(NotFoundError):
            await client.get(f"/requests/{theirs}", cast_to=object)


async def test_a_revoked_and_an_expired_key_are_refused(world: World) -> None:
    secrets = {tenant: await key(world.admin, tenant, **more) for tenant, more in (("c", {}), ("d", SHORT))}
    listed = (await world.admin.get("/admin/v1/keys")).json()["keys"]
    ids = {each["tenant"]: each["id"] for each in listed}
    assert [each["tenant"] for each in listed][:2] == ["a", "b"]
    assert not any(secret in str(listed) for secret in secrets.values())

    async def answered(tenant: str, status: int) -> bool:
        headers = {"authorization": f"Bearer {secrets[tenant]}"}
        return (await world.anyone.get("/v1/models", headers=headers)).status_code == status

    await until(partial(answered, "c", 200))
    assert (await world.admin.delete(f"/admin/v1/keys/{ids['c']}")).json()["revoked"]
    await until(partial(answered, "c", 401))
    await until(partial(answered, "d", 401))
    assert (await world.a.http.get("/v1/models")).status_code == 200
    assert error(await world.admin.delete(f"/admin/v1/keys/{ids['c']}")) == (404, "key_not_found")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "tenant"),
        ({"tenant": ""}, "tenant"),
        ({"tenant": "x" * 101}, "tenant"),
        ({"tenant": "a\nb"}, "tenant"),
        ({"tenant": "a", "scopes": []}, "scopes"),
        ({"tenant": "a", "scopes": ["root"]}, "scopes"),
        ({"tenant": "a", "scopes": "infer"}, "scopes"),
        ({"tenant": "a", "scopes": [["infer"]]}, "scopes"),
        ({"tenant": "a", "expires_in_s": 0}, "expires_in_s"),
        ({"tenant": "a", "expires_in_s": True}, "expires_in_s"),
        ({"tenant": "a", "expires_in_s": "1h"}, "expires_in_s"),
        ({"tenant": "a", "name": "x"}, "name"),
    ],
)
async def test_a_key_with_wrong_fields_is_not_made(world: World, body: Any, param: str) -> None:
    before = await world.cluster.store.api_keys()
    answer = await world.admin.post("/admin/v1/keys", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert await world.cluster.store.api_keys() == before


# --- tenants


async def test_the_tenant_is_that_of_the_key_whatever_the_request_says(world: World) -> None:
    headers = {"x-llm-d-inference-fairness-id": "b"}
    answer = await world.a.http.post("/v1/completions", json=BODY | {"user": "b"}, headers=headers)
    record = await world.cluster.store.record(RequestId(answer.headers["x-request-id"]))
    assert record is not None and record.metadata.tenant == "a"


async def test_no_header_of_a_client_is_taken_for_the_tenant_of_a_key(world: World) -> None:
    """Its name cannot be sent over HTTP/1.1; if a server took it, the key would win."""
    client = await Client.connect(world.url)
    client.send(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n:tenant: a\r\n\r\n")
    assert await client.refusal() == (400, "malformed_http")


@pytest.mark.parametrize(
    "route", [each for each in PUBLIC_ROUTES if "{" in each[1]], ids=lambda each: each[1]
)
async def test_what_another_tenant_has_is_not_found(world: World, route: tuple[str, str, Any]) -> None:
    method, path, _ = route
    if path in OF_NO_TENANT:
        return
    before, _, after = path.partition("{id}")
    mine = await objects(world, world.a)
    for id in mine[before]:
        theirs = await world.b.http.request(method, f"{before}{id}{after}")
        nobodys = await world.b.http.request(method, f"{before}{uuid.uuid4().hex}{after}")
        assert error(theirs) == error(nobodys)
        assert theirs.status_code == 404
    record = await world.cluster.store.record(RequestId(mine["/v1/requests/"][0]))
    assert record is not None and record.state is RequestState.RUNNING and not record.cancel_requested


async def test_lists_have_the_callers_own_alone(world: World) -> None:
    mine = await objects(world, world.a)
    for path, before in (("/v1/files", "/v1/files/"), ("/v1/batches", "/v1/batches/")):
        assert mine[before][0] in (await world.a.http.get(path)).text
        assert mine[before][0] not in (await world.b.http.get(path)).text


async def test_no_batch_is_made_of_the_file_of_another_tenant(world: World) -> None:
    (file,) = (await objects(world, world.a))["/v1/files/"]
    body = {"input_file_id": file, "endpoint": LINE["url"], "completion_window": "1h"}
    assert error(await world.b.http.post("/v1/batches", json=body)) == (404, "file_not_found")


async def test_the_requests_of_a_batch_are_its_tenants(world: World) -> None:
    mine = (await objects(world, world.a))["/v1/batches/"][0]

    async def request_id() -> str | None:
        answer = (await world.a.http.get(f"/v1/batches/{mine}")).json()
        if answer["output_file_id"] is None:
            return None
        content = await world.a.http.get(f"/v1/files/{answer['output_file_id']}/content")
        return str(orjson.loads(content.content)["response"]["request_id"])

    await until(request_id)
    id = await request_id()
    assert (await world.a.http.get(f"/v1/requests/{id}")).status_code == 200
    assert (await world.b.http.get(f"/v1/requests/{id}")).status_code == 404


async def test_each_tenant_has_its_own(world: World) -> None:
    id = await running_request(world, world.a)
    assert (await world.a.http.get(f"/v1/requests/{id}")).json()["status"] == "running"
    assert (await world.a.http.post(f"/v1/requests/{id}/cancel")).status_code == 200
    theirs = await running_request(world, world.b)
    assert (await world.admin.post(f"/admin/v1/requests/{theirs}/cancel")).status_code == 200


async def test_no_conversation_goes_on_from_what_another_tenant_has(world: World) -> None:
    body = RESPONSE | {"previous_response_id": await ended_response(world.a)}
    assert error(await world.b.http.post("/v1/responses", json=body)) == (404, "response_not_found")
    assert (await world.a.http.post("/v1/responses", json=body)).status_code == 200


async def test_an_idempotency_key_is_the_tenants_own(world: World) -> None:
    headers = {"idempotency-key": "the-same"}
    mine, again = [await world.a.http.post("/v1/completions", json=BODY, headers=headers) for _ in range(2)]
    theirs = await world.b.http.post("/v1/completions", json=BODY | {"max_tokens": 1}, headers=headers)
    ids = [each.headers["x-request-id"] for each in (mine, again, theirs)]
    assert ids[0] == ids[1] != ids[2]
    assert [each.status_code for each in (mine, again, theirs)] == [200, 200, 200]


# --- gRPC


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stub(world: World) -> AsyncIterator[QlmStub]:
    async with aio.insecure_channel(world.rpc_address) as channel:
        yield QlmStub(channel)


async def rpc(stub: QlmStub, method: str, id: str, headers: dict[str, str]) -> grpc.StatusCode:
    """Call a method on a request, and return the status."""
    message: dict[str, Any] = {
        "Generate": pb.GenerateRequest(model="emulated", prompt="Hi", max_tokens=2),
        "Resume": pb.ResumeRequest(id=id),
        "Get": pb.GetRequest(id=id),
        "Cancel": pb.CancelRequest(id=id),
        "ListQueues": pb.ListQueuesRequest(),
    }
    call = getattr(stub, method)(message[method], metadata=tuple(headers.items()))
    try:
        await (Stream().read(call) if isinstance(call, aio.UnaryStreamCall) else call)
    except aio.AioRpcError as failed:
        return failed.code()
    return CODE.OK


METHODS: Final = sorted(pb.DESCRIPTOR.services_by_name["Qlm"].methods_by_name)


@pytest.mark.parametrize("method", METHODS)
async def test_no_method_serves_another_tenant(world: World, stub: QlmStub, method: str) -> None:
    ended = await ended_request(world.a)
    assert await rpc(stub, method, ended, {}) is CODE.UNAUTHENTICATED
    assert await rpc(stub, method, ended, {"authorization": "Bearer wrong"}) is CODE.UNAUTHENTICATED
    expected = {"Generate": CODE.OK, "ListQueues": CODE.PERMISSION_DENIED}.get(method, CODE.NOT_FOUND)
    assert await rpc(stub, method, ended, world.b.headers) is expected
    if expected is CODE.NOT_FOUND:
        assert await rpc(stub, method, ended, world.a.headers) is CODE.OK


async def test_the_tenant_of_a_grpc_call_is_that_of_its_key(world: World, stub: QlmStub) -> None:
    message = pb.GenerateRequest(model="emulated", prompt="Hi", max_tokens=2, user="b")
    stream = await Stream().read(stub.Generate(message, metadata=tuple(world.a.headers.items())))
    assert stream.started is not None
    record = await world.cluster.store.record(RequestId(stream.started.id))
    assert record is not None and record.metadata.tenant == "a"


# --- the command line


async def test_keys_are_managed_from_the_command_line(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QLM_ADMIN_TOKEN", TOKEN)
    url = world.cluster.admin_urls[world.url]

    async def qlm(*arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, main, ["keys", *arguments, "--url", url])

    made = await qlm("create", "--tenant", "team c", "--scope", "infer", "--expires-in", "90d")
    assert made.exit_code == 0, made.output
    secret = made.stdout.strip()
    headers = {"authorization": f"Bearer {secret}"}

    assert (await world.anyone.get("/v1/models", headers=headers)).status_code == 200
    listed = (await qlm("list")).stdout
    assert "team c" in listed and secret not in listed
    (id,) = [line.split("\t")[0] for line in listed.splitlines() if "team c" in line]
    assert (await qlm("revoke", id)).stdout == f"{id} is revoked\n"
    assert (await qlm("revoke", id)).exit_code == 1
    wrong = await qlm("create", "--tenant", "c", "--expires-in", "soon")
    assert wrong.exit_code == 2 and "expected a duration such as 30m" in wrong.output
    refused = await qlm("create", "--tenant", "")
    assert (refused.exit_code, refused.output) == (
        2,
        "qlm: tenant is ''; expected a name of 1 to 100 characters\n",
    )

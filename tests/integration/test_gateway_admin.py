"""The listener for operators: who may call it, and what it serves."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from click.testing import CliRunner, Result
from grpc import aio

from qlm.cli.config.default import emulated_config
from qlm.cli.main import main
from qlm.cli.runtime.listeners import client_server
from qlm.gateway.core.access import AccessRules
from qlm.gateway.core.connection_limits import ConnectionLimits
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from qlm.gateway.sessions.gateway import create_gateway
from support.gateway import Cluster, running_cluster
from support.rpc import rpc_gateway

TOKEN = "of-the-operators-of-this-test"
CLOSED = AccessRules(token=TOKEN)
BEYOND = AccessRules(listens_on="0.0.0.0")
OPERATORS = ("/metrics", "/admin/v1/requests", "/admin/v1/listeners", "/nowhere", "/healthz/")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def admin(cluster: Cluster, rules: AccessRules | None = None) -> httpx.AsyncClient:
    url = await cluster.gateway(admin_rules=rules)
    client = httpx.AsyncClient(base_url=cluster.admin_urls[url], timeout=20)
    return await cluster.stack.enter_async_context(client)


async def test_on_loopback_operators_need_no_token(cluster: Cluster) -> None:
    http = await admin(cluster)
    assert (await http.get("/admin/v1/requests")).json() == {"requests": []}
    assert "qlm_gateway_open_requests 0.0" in (await http.get("/metrics")).text
    assert (await http.post("/admin/v1/instances/gpu-0/drain")).status_code == 202
    assert (
        (await http.get("/readyz")).json()["status"] == (await http.get("/healthz")).json()["status"] == "ok"
    )


async def test_clients_are_not_served_there(cluster: Cluster) -> None:
    http = await admin(cluster)
    body = {"model": "emulated", "prompt": "Hi"}
    assert code(await http.post("/v1/completions", json=body)) == (404, "not_found")
    assert code(await http.get("/v1/models")) == (404, "not_found")


@pytest.mark.parametrize(
    "given",
    [None, "", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", f"Basic {TOKEN}", "Bearer \xe4"],
)
async def test_without_its_token_only_probes_are_answered(cluster: Cluster, given: str | None) -> None:
    http = await admin(cluster, CLOSED)
    headers = {} if given is None else {b"authorization": given.encode("latin-1")}
    for path in OPERATORS:
        refused = await http.get(path, headers=headers)
        assert code(refused) == (401, "admin_token_required"), path
        assert refused.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in refused.text
    assert code(await http.post("/admin/v1/instances/gpu-0/drain", headers=headers))[0] == 401
    assert not (await cluster.store.view()).instances[0].draining
    assert (await http.get("/healthz", headers=headers)).status_code == 200
    assert (await http.get("/readyz", headers=headers)).status_code == 200


@pytest.mark.parametrize("given", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Bearer  {TOKEN}"])
async def test_with_its_token_operators_are_served(cluster: Cluster, given: str) -> None:
    http = await admin(cluster, CLOSED)
    headers = {"authorization": given}
    assert (await http.get("/admin/v1/requests", headers=headers)).json() == {"requests": []}
    assert (await http.get("/metrics", headers=headers)).status_code == 200
    assert (await http.post("/admin/v1/instances/gpu-0/drain", headers=headers)).status_code == 202


async def test_beyond_loopback_nobody_is_an_operator_without_a_token(cluster: Cluster) -> None:
    http = await admin(cluster, BEYOND)
    for headers in ({}, {"authorization": "Bearer"}, {"authorization": f"Bearer {TOKEN}"}):
        assert code(await http.get("/metrics", headers=headers)) == (403, "no_admin_token")
    assert (await http.get("/healthz")).status_code == 200


async def test_pages_and_foreign_names_are_refused_also_with_the_token(cluster: Cluster) -> None:
    http = await admin(cluster, CLOSED)
    known = {"authorization": f"Bearer {TOKEN}"}
    page = known | {"origin": "http://127.0.0.1:3000"}
    for method, path in (("GET", "/metrics"), ("DELETE", "/admin/v1/dead"), ("GET", "/healthz")):
        assert code(await http.request(method, path, headers=page)) == (403, "origin_not_allowed")
    preflight = page | {"access-control-request-method": "POST"}
    assert code(await http.options("/admin/v1/dead/retry", headers=preflight)) == (403, "origin_not_allowed")
    for path in ("/metrics", "/readyz"):
        answer = await http.get(path, headers=known | {"host": "evil.example"})
        assert code(answer) == (421, "host_not_allowed")
    form = known | {"content-type": "text/plain"}
    answer = await http.post("/admin/v1/instances/gpu-0/drain", content=b"{}", headers=form)
    assert code(answer) == (415, "unsupported_media_type")


@pytest.mark.parametrize("path", ["/metrics", "/admin", "/admin/v1/queues", "/admin/v1/dead/x/retry"])
async def test_clients_learn_where_operators_are_served(cluster: Cluster, path: str) -> None:
    async with httpx.AsyncClient(base_url=await cluster.gateway(), timeout=20) as http:
        for method in ("GET", "POST", "DELETE", "PUT"):
            answer = await http.request(method, path)
            assert code(answer) == (410, "moved_to_admin")
            assert answer.json()["error"]["message"] == (
                f"{path} is for operators, who are served on http://127.0.0.1:8090 (section admin)"
            )
        assert code(await http.get("/metrics/x")) == (404, "not_found")
    assert not (await cluster.store.view()).instances[0].draining


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8090"),
        ("0.0.0.0", "http://127.0.0.1:8090"),
        ("::", "http://[::1]:8090"),
        ("fd00::1", "http://[fd00::1]:8090"),
    ],
)
async def test_that_address_is_one_that_can_be_called(cluster: Cluster, host: str, url: str) -> None:
    config = emulated_config({"admin": {"host": host}})
    gateway = create_gateway(cluster.parts())
    app: Any = client_server(config, gateway, ConnectionLimits()).config.app
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        answer = await http.get("/metrics")
    assert f"are served on {url} (" in answer.json()["error"]["message"]


async def test_operators_cancel_any_request(cluster: Cluster) -> None:
    cluster.agent.pause_at = 3
    url = await cluster.gateway()
    async with httpx.AsyncClient(timeout=20) as http:
        body = {"model": "emulated", "prompt": "Hi"}
        headers = {"prefer": "respond-async"}
        made = (await http.post(f"{url}/v1/completions", json=body, headers=headers)).json()
        answer = await http.post(f"{cluster.admin_urls[url]}/admin/v1/requests/{made['id']}/cancel")
        assert (answer.status_code, answer.json()["id"]) == (200, made["id"])
        assert answer.json()["cancel_requested"] or answer.json()["outcome"] == "cancelled"
        unknown = await http.post(f"{cluster.admin_urls[url]}/admin/v1/requests/nobody/cancel")
        assert code(unknown) == (404, "request_not_found")


@pytest.mark.parametrize(
    ("rules", "given", "status"),
    [
        (AccessRules(), "", None),
        (CLOSED, f"Bearer {TOKEN}", None),
        (CLOSED, "", "UNAUTHENTICATED"),
        (CLOSED, f"Bearer {TOKEN}x", "UNAUTHENTICATED"),
        (BEYOND, "", "PERMISSION_DENIED"),
    ],
)
async def test_queues_are_listed_over_grpc_for_operators_only(
    cluster: Cluster, rules: AccessRules, given: str, status: str | None
) -> None:
    metadata = (("authorization", given),) if given else ()
    async with rpc_gateway(cluster, rules=rules) as (address, _), aio.insecure_channel(address) as channel:
        stub = QlmStub(channel)
        asked = stub.ListQueues(pb.ListQueuesRequest(), metadata=metadata)
        if status is None:
            assert list((await asked).virtual_queues) == []
        else:
            with pytest.raises(aio.AioRpcError) as caught:
                await asked
            assert caught.value.code().name == status
        # Clients are served all the same.
        answer = stub.Generate(pb.GenerateRequest(model="emulated", prompt="Hi"))
        assert [each async for each in answer][-1].HasField("ended")


async def qlm(*words: str, **environment: str | None) -> Result:
    """Run a command while the gateway goes on in this loop."""
    given = {"QLM_URL": None, "QLM_ADMIN_TOKEN": None, **environment}
    return await asyncio.to_thread(lambda: CliRunner().invoke(main, list(words), env=given))


@pytest.mark.parametrize("command", [("requests",), ("plan", "show")])
async def test_qlm_gets_address_and_token_from_options_environment_or_configuration(
    cluster: Cluster, tmp_path: Path, command: tuple[str, ...]
) -> None:
    url = cluster.admin_urls[await cluster.gateway(admin_rules=CLOSED)]
    config = {
        "models": [{"id": "mistral-7b"}],
        "instances": [{"id": "i", "accelerator": "A100", "models": ["mistral-7b"]}],
        "admin": {"port": int(url.rpartition(":")[2]), "token": TOKEN},
    }
    file = tmp_path / "qlm.yaml"
    file.write_text(yaml.safe_dump(config), "utf-8")
    ways = (
        await qlm(*command, "--url", url, QLM_ADMIN_TOKEN=TOKEN),
        await qlm(*command, QLM_URL=url, QLM_ADMIN_TOKEN=TOKEN),
        await qlm(*command, "--config", str(file)),
        await qlm(*command, "--config", str(file), QLM_ADMIN_TOKEN=TOKEN),
        await qlm(*command, "--config", str(file), "--url", url, QLM_URL="http://127.0.0.1:1"),
    )
    served = "" if command == ("requests",) else "qlm: there is no plan yet"
    for done in ways:
        assert "admin token" not in done.output and "no QLM gateway" not in done.output
        assert done.output.startswith(served), done.output
    wrong = await qlm(*command, "--config", str(file), QLM_ADMIN_TOKEN="another token".replace(" ", "-") * 2)
    missing = await qlm(*command, "--url", url)
    for done, state in ((wrong, "wrong"), (missing, "missing")):
        assert (done.exit_code, done.output.count("\n")) == (1, 1)
        assert done.output.startswith(f"qlm: the admin token is {state}; expected")
        assert "set QLM_ADMIN_TOKEN, or give the --config of the gateway" in done.output


async def test_qlm_that_asks_the_listener_of_clients_is_sent_to_that_of_operators(cluster: Cluster) -> None:
    done = await qlm("queues", "--url", await cluster.gateway())
    assert (done.exit_code, done.output) == (
        1,
        "qlm: /admin/v1/queues is for operators, who are served on http://127.0.0.1:8090 (section admin)\n",
    )

"""Every HTTP route of a gateway whose ports may fail: how each is called, and what it needs first."""

import asyncio
import contextlib
import secrets
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import orjson

from qlm.domain.ports.api_keys import Scope
from qlm.gateway.core.access import AccessRules
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.files.disk.storage import storage_in
from qlm.gateway.http.routes import ADMIN_ROUTES, PUBLIC_ROUTES
from qlm.gateway.keys.secret import make_key
from simulation.injection import Failure, Injector
from support.dead_letters import move_to_dead_letters
from support.failing_storage import failing_storage
from support.gateway import Cluster, SystemClock, running_cluster
from support.requests import a_request

BODY: Final[dict[str, Any]] = {"model": "emulated", "prompt": "Hi", "max_tokens": 2}
MESSAGES: Final[dict[str, Any]] = {
    "model": "emulated",
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 2,
}
RESPONSE: Final[dict[str, Any]] = {"model": "emulated", "input": "Hi", "max_output_tokens": 2}
LINE: Final = (
    orjson.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": BODY}) + b"\n"
)
FORM: Final[dict[str, Any]] = {"files": {"file": ("in.jsonl", LINE)}, "data": {"purpose": "batch"}}

SENT: Final[dict[str, dict[str, Any]]] = {
    "/v1/chat/completions": {"json": MESSAGES},
    "/v1/completions": {"json": BODY},
    "/v1/responses": {"json": RESPONSE},
    "/v1/messages": {"json": MESSAGES},
    "/v1/messages/count_tokens": {"json": {name: MESSAGES[name] for name in ("model", "messages")}},
    "/tokenize": {"json": {"model": "emulated", "prompt": "Hi"}},
    "/detokenize": {"json": {"model": "emulated", "tokens": [72]}},
    "/admin/v1/keys": {"json": {"tenant": "a"}},
}
"""What is sent to routes that take a body, but for those that need an object first."""

PORTS: Final = ("store", "broker", "storage")

ROUTES: Final = [(method, path) for method, path, _ in (*PUBLIC_ROUTES, *ADMIN_ROUTES)]

TOKEN: Final = "of-the-operators"


@dataclass(frozen=True, slots=True)
class World:
    """A gateway whose calls may fail, and clients of its two listeners."""

    cluster: Cluster
    injector: Injector
    http: httpx.AsyncClient
    admin: httpx.AsyncClient

    def client(self, path: str) -> httpx.AsyncClient:
        """Return the client of the listener that serves a route."""
        return self.admin if path.startswith(("/admin/", "/metrics")) else self.http


@contextlib.asynccontextmanager
async def failing_gateway(
    folder: Path, *, limits: GatewayLimits | None = None, keys_required: bool = False
) -> AsyncIterator[World]:
    """Run a gateway whose calls may fail; with required keys, its clients send one, and operators another."""
    injector = Injector()
    async with running_cluster(folder) as cluster, contextlib.AsyncExitStack() as stack:
        store = cluster.store
        cluster.store = injector.wrap("gateway", "store", store)
        url = await cluster.gateway(
            broker=injector.wrap("gateway", "broker", cluster.broker),
            storage=failing_storage(storage_in(folder / "files", SystemClock()), injector),
            limits=limits,
            rules=AccessRules(keys_required=keys_required),
            admin_rules=AccessRules(token=TOKEN if keys_required else None),
        )
        cluster.store = store

        async def client(base_url: str, scope: Scope) -> httpx.AsyncClient:
            key, secret = make_key("a", [scope], None, 0, secrets.token_hex)
            await store.add_api_key(key)
            headers = {"authorization": f"Bearer {secret}"} if keys_required else {}
            made = httpx.AsyncClient(base_url=base_url, timeout=60, headers=headers)
            return await stack.enter_async_context(made)

        admin = await client(cluster.admin_urls[url], Scope.ADMIN)
        yield World(cluster, injector, await client(url, Scope.INFER), admin)


async def ended(world: World, path: str, body: dict[str, Any]) -> str:
    """Send a request, and return its id once it is answered."""
    answer = await world.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"] if path == "/v1/responses" else answer.headers["x-request-id"])


async def an_answer(world: World) -> str:
    return await ended(world, "/v1/completions", BODY)


async def a_response(world: World) -> str:
    return await ended(world, "/v1/responses", RESPONSE | {"background": True})


async def a_file(world: World) -> str:
    answer = await world.http.post("/v1/files", **FORM)
    return str(answer.json()["id"])


async def a_batch(world: World) -> str:
    answer = await world.http.post("/v1/batches", json=await batch_body(world))
    return str(answer.json()["id"])


async def a_letter(world: World) -> str:
    await move_to_dead_letters(world.cluster.broker, a_request(uuid.uuid4().hex, model="emulated"))
    return str((await world.admin.get("/admin/v1/dead")).json()["letters"][-1]["id"])


async def a_key(world: World) -> str:
    await world.admin.post("/admin/v1/keys", json={"tenant": "a"})
    return str((await world.admin.get("/admin/v1/keys")).json()["keys"][-1]["id"])


async def a_model(world: World) -> str:
    return "emulated"


async def an_instance(world: World) -> str:
    return "gpu-0"


OBJECTS: Final[dict[str, Callable[[World], Awaitable[str]]]] = {
    "/v1/responses/": a_response,
    "/v1/models/": a_model,
    "/v1/requests/": an_answer,
    "/v1/files/": a_file,
    "/v1/batches/": a_batch,
    "/admin/v1/requests/": an_answer,
    "/admin/v1/instances/": an_instance,
    "/admin/v1/dead/": a_letter,
    "/admin/v1/batches/": a_batch,
    "/admin/v1/keys/": a_key,
}
"""How the object is made that a route names, by the beginning of its path."""


async def batch_body(world: World) -> dict[str, Any]:
    return {
        "input_file_id": await a_file(world),
        "endpoint": "/v1/completions",
        "completion_window": "1h",
    }


async def sent_to(world: World, method: str, path: str) -> tuple[str, dict[str, Any]]:
    """Make what a route names and needs; return its URL and what is sent there."""
    url = path
    if "{" in path:
        before, _, rest = path.partition("{")
        url = before + await OBJECTS[before](world) + rest.partition("}")[2]
    elif path == "/admin/v1/dead" or path == "/admin/v1/dead/retry":
        await a_letter(world)
    if (method, path) == ("POST", "/v1/files"):
        return url, FORM
    if (method, path) == ("POST", "/v1/batches"):
        return url, {"json": await batch_body(world)}
    if method != "POST":
        return url, {}
    return url, SENT.get(path, {"json": {}})


async def call(
    world: World, method: str, path: str, failure: Failure | None, lasting_s: float = 3600.0
) -> httpx.Response:
    """Call a route; its calls are counted from zero, and for some time one failure is made."""
    url, sent = await sent_to(world, method, path)
    world.injector.begin_anew(failure)
    calling = asyncio.create_task(world.client(path).request(method, url, **sent))
    await asyncio.wait({calling}, timeout=lasting_s)
    world.injector.failure = None
    return await calling


async def ready(world: World) -> bool:
    """Return whether the gateway says that it is ready."""
    return (await world.http.get("/readyz")).status_code == 200

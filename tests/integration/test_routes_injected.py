"""Failures of every kind at every call that every HTTP route makes: an error in the documented form, no more.

The routes are those of the code; a new one fails here until it is known how it is called.
"""

import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
import pytest

from qlm.gateway.files.disk.storage import storage_in
from qlm.gateway.http.routes import ADMIN_ROUTES, PUBLIC_ROUTES
from simulation.injection import Failure, Injector, Site, When, errors_of
from support.dead_letters import move_to_dead_letters
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

UNPUBLISHED: Final = {"/admin/v1/plan", "/admin/v1/forecast", "/admin/v1/history"}
"""Routes that answer 404 while no controller has published what they show."""

PROBES: Final = {"/health", "/readyz"}
"""Routes that answer 503 with the state of each part."""

ROUTES: Final = [(method, path) for method, path, _ in (*PUBLIC_ROUTES, *ADMIN_ROUTES)]


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


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    injector = Injector()
    storage = storage_in(tmp_path / "files", SystemClock())
    async with running_cluster(tmp_path) as cluster, contextlib.AsyncExitStack() as stack:
        store, broker = cluster.store, injector.wrap("gateway", "broker", cluster.broker)
        cluster.store = injector.wrap("gateway", "store", store)
        url = await cluster.gateway(broker=broker, storage=storage)
        cluster.store = store

        async def client(base_url: str) -> httpx.AsyncClient:
            return await stack.enter_async_context(httpx.AsyncClient(base_url=base_url, timeout=30))

        yield World(cluster, injector, await client(url), await client(cluster.admin_urls[url]))


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


async def call(world: World, method: str, path: str, failure: Failure | None) -> httpx.Response:
    """Call a route; its calls are counted from zero, and one of them may fail."""
    url, sent = await sent_to(world, method, path)
    world.injector.calls.clear()
    world.injector.failure = failure
    try:
        return await world.client(path).request(method, url, **sent)
    finally:
        world.injector.failure = None


def failures(calls: dict[Site, int]) -> Iterator[Failure]:
    """Yield a failure of each kind before and after the first call of each site."""
    for site in sorted(calls):
        for error in errors_of(site):
            for when in When:
                yield Failure(site, error, when, first=0, count=1)


def wrong(answer: httpx.Response, path: str, failure: Failure) -> str | None:
    """Return how an answer to a call that failed is not as documented."""
    code = answer.status_code
    if code < 500 or path in PROBES:
        return None
    if not {"message", "type"} <= set(answer.json().get("error", {})):
        return f"{code} without an error: {answer.text}"
    if code == 503 and "retry-after" not in answer.headers:
        return f"503 without Retry-After: {answer.text}"
    if code != 503 and "Unavailable" in failure.error.__name__:
        return f"{code} for a part that is away: {answer.text}"
    return None


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=[f"{method} {path}" for method, path in ROUTES])
async def test_a_failed_call_costs_its_own_request_an_error(world: World, method: str, path: str) -> None:
    undisturbed = await call(world, method, path, None)
    known = undisturbed.status_code == 404 if path in UNPUBLISHED else undisturbed.is_success
    assert known, f"how is it called? {undisturbed.text}"
    broken = {}
    for failure in failures(dict(world.injector.calls)):
        if found := wrong(await call(world, method, path, failure), path, failure):
            broken[failure] = found
    assert not broken, "\n".join(f"{failure}: {found}" for failure, found in broken.items())
    assert (await world.http.post("/v1/completions", json=BODY)).status_code == 200

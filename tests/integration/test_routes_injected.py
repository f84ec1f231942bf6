"""Failures of every kind at every call that every HTTP route makes: an error in the documented form, no more.

The routes are those of the code; a new one fails here until it is known how it is called.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from qlm.domain.ports.api_keys import ApiKeys
from qlm.gateway.core.limits import GatewayLimits
from simulation.injection import ERRORS, EVERY, Failure, Site, When, errors_of
from support.api_key_reads import read_keys_each_time
from support.gateway import until
from support.injected_routes import (
    BODY,
    PORTS,
    ROUTES,
    World,
    call,
    failing_gateway,
    ready,
)
from support.port_operations import OF_ROUTES

UNPUBLISHED: Final = {"/admin/v1/plan", "/admin/v1/forecast", "/admin/v1/history"}
"""Routes that answer 404 while no controller has published what they show."""

PROBES: Final = {"/health", "/readyz"}
"""Routes that answer 503 with the state of each part."""

CUT_OFF: Final = {"/v1/files/{id}/content"}
"""Routes that cut their answer off, which has begun, if they cannot go on."""

READ_KEYS: Final = {"/admin/v1/keys", "/admin/v1/store"}
"""Routes that read the API keys for their answer, too."""

OUTAGE_S: Final = 0.2
WITHOUT_END: Final = 1_000_000

EACH_ROUTE: Final = pytest.mark.parametrize(
    ("method", "path"), ROUTES, ids=[f"{method} {path}" for method, path in ROUTES]
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with failing_gateway(tmp_path) as made:
        yield made


@pytest.fixture
async def watchful(tmp_path: Path) -> AsyncIterator[World]:
    """A gateway that notices soon that a server is back."""
    async with failing_gateway(tmp_path, limits=GatewayLimits(view_interval_s=0.05)) as made:
        yield made


@pytest.fixture
async def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A gateway that asks for API keys, and reads them for each call."""
    read_keys_each_time(monkeypatch)
    async with failing_gateway(tmp_path, keys_required=True) as made:
        yield made


def failures(calls: dict[Site, int]) -> Iterator[Failure]:
    """Yield a failure of each kind before and after the first call of each site."""
    for site in sorted(calls):
        for error in errors_of(site):
            for when in When:
                yield Failure(site, error, when, first=0, count=1)


def outages() -> Iterator[Failure]:
    """Yield an outage of each port by each kind of failure."""
    for port in PORTS:
        for error in ERRORS[port]:
            yield Failure(Site("gateway", port, EVERY), error, When.BEFORE, first=0, count=WITHOUT_END)


async def found_wrong(
    world: World, method: str, path: str, failure: Failure, lasting_s: float = 3600.0
) -> str | None:
    """Call a route in an outage; return how the answer is not as documented."""
    try:
        answer = await call(world, method, path, failure, lasting_s)
    except httpx.RemoteProtocolError as error:
        return None if path in CUT_OFF else f"cut off: {error}"
    except httpx.TransportError as error:
        return f"no answer: {error!r}"
    return wrong(answer, path, failure, world.injector.hits)


def wrong(answer: httpx.Response, path: str, failure: Failure, hits: int) -> str | None:
    """Return how an answer to a call that failed is not as documented."""
    code = answer.status_code
    if path == "/healthz":
        return None if code == 200 else f"the process answers: {answer.text}"
    if path in PROBES:
        return wrong_probe(answer, failure.site.port, hits)
    if code < 500:
        return None
    if not {"message", "type"} <= set(answer.json().get("error", {})):
        return f"{code} without an error: {answer.text}"
    if code == 503 and "retry-after" not in answer.headers:
        return f"503 without Retry-After: {answer.text}"
    if code != 503 and "Unavailable" in failure.error.__name__:
        return f"{code} for a part that is away: {answer.text}"
    return None


def wrong_probe(answer: httpx.Response, port: str, hits: int) -> str | None:
    """Return how a probe is not honest: it names the part that failed, and says whether all are well."""
    code = answer.status_code
    if code not in (200, 503) or answer.headers["content-type"] != "application/json":
        return f"{code}, no state of parts: {answer.text}"
    state = answer.json()
    well = all(state[part] == "ok" for part in ("broker", "store", "sessions"))
    if (code == 200, state["status"] == "ok") != (well, well):
        return f"{code} for {answer.text}"
    if hits and port in state and state[port] == "ok":
        return f"the {port} is well though its probe failed: {answer.text}"
    return None


def lines_of(broken: dict[Failure, str]) -> str:
    """Return a line for each failure that broke something."""
    return "\n".join(f"{failure}: {found}" for failure, found in broken.items())


def known(answer: httpx.Response, path: str) -> bool:
    """Return whether a call without failures is answered as it should be."""
    return answer.status_code == 404 if path in UNPUBLISHED else answer.is_success


@EACH_ROUTE
async def test_a_failed_call_costs_its_own_request_an_error(world: World, method: str, path: str) -> None:
    undisturbed = await call(world, method, path, None)
    assert known(undisturbed, path), f"how is it called? {undisturbed.text}"
    broken = {}
    for failure in failures(dict(world.injector.calls)):
        if found := await found_wrong(world, method, path, failure):
            broken[failure] = found
    assert not broken, lines_of(broken)
    assert (await world.http.post("/v1/completions", json=BODY)).status_code == 200


async def test_the_routes_call_each_operation_for_which_no_other_test_does(world: World) -> None:
    made: set[Site] = set()
    for method, path in ROUTES:
        await call(world, method, path, None)
        made |= world.injector.calls.keys()
    made |= {Site("gateway", "store", ApiKeys.api_keys.__name__)}  # of gateways that ask for keys
    for port, operations in OF_ROUTES.items():
        assert {site.operation for site in made if site.port == port} >= operations


@EACH_ROUTE
async def test_an_outage_costs_what_is_asked_while_it_lasts(watchful: World, method: str, path: str) -> None:
    broken = {}
    for failure in outages():
        await until(lambda: ready(watchful))
        if found := await found_wrong(watchful, method, path, failure, OUTAGE_S):
            broken[failure] = found
    assert not broken, lines_of(broken)
    await until(lambda: ready(watchful))
    assert known(await call(watchful, method, path, None), path)


@EACH_ROUTE
async def test_keys_that_are_known_count_whatever_the_failure_of_their_read(
    guarded: World, method: str, path: str
) -> None:
    assert known(await call(guarded, method, path, None), path)
    site = Site("gateway", "store", ApiKeys.api_keys.__name__)
    broken = {}
    for failure in failures({site: 1}):
        answer = await call(guarded, method, path, failure)
        if path not in READ_KEYS and not known(answer, path):
            broken[failure] = f"{answer.status_code}: {answer.text}"
        elif found := wrong(answer, path, failure, guarded.injector.hits):
            broken[failure] = found
    assert not broken, lines_of(broken)


@pytest.mark.parametrize("error", ERRORS["store"])
async def test_unknown_keys_are_not_wrong_while_keys_cannot_be_read(
    guarded: World, error: type[Exception]
) -> None:
    """A gateway that knows none yet, too, says 503 and not 401."""
    read = Site("gateway", "store", ApiKeys.api_keys.__name__)
    asked = [(guarded.http, "/v1/models"), (guarded.admin, "/admin/v1/queues")]
    for headers, well in (({}, 200), ({"authorization": "Bearer sk-qlm-unknown"}, 401)):
        guarded.injector.begin_anew(Failure(read, error, When.BEFORE, 0, WITHOUT_END))
        refused = [await client.get(path, headers=headers) for client, path in asked]
        assert [(each.status_code, each.headers.get("retry-after")) for each in refused] == [(503, "1")] * 2
        guarded.injector.begin_anew(None)
        assert [(await client.get(path, headers=headers)).status_code for client, path in asked] == [well] * 2

"""Callers that the HTTP listener accepts: web pages, host names, content types."""

import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from qlm.domain.ids import RequestId
from qlm.gateway.core.access import AccessRules
from support.gateway import Cluster, running_cluster

BODY: dict[str, Any] = {"model": "emulated", "prompt": "Hi"}
PAGE = "https://chat.example.com"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


@pytest.fixture
async def http(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=await cluster.gateway(), timeout=20) as client:
        yield client


@pytest.fixture
async def open_to_page(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    url = await cluster.gateway(rules=AccessRules(origins=(PAGE,)))
    async with httpx.AsyncClient(base_url=url, timeout=20) as client:
        yield client


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.parametrize("origin", [PAGE, "null", "http://127.0.0.1:3000", "https://evil.example"])
async def test_a_web_page_can_post_nothing(cluster: Cluster, http: httpx.AsyncClient, origin: str) -> None:
    headers = {"origin": origin}
    refused = (403, "origin_not_allowed")
    assert code(await http.post("/v1/completions", json=BODY, headers=headers)) == refused
    for path in ("/admin/v1/instances/gpu-0/drain", "/admin/v1/dead/retry", "/metrics"):
        assert code(await http.post(path, headers=headers)) == refused
    preflight = await http.options("/v1/completions", headers=headers | PREFLIGHT)
    assert code(preflight) == refused
    assert "access-control-allow-origin" not in preflight.headers
    assert await cluster.broker.queues() == []
    (view,) = (await cluster.store.view()).instances
    assert not view.draining


async def test_a_page_of_an_allowed_origin_may_call(open_to_page: httpx.AsyncClient) -> None:
    headers = {"origin": PAGE}
    preflight = await open_to_page.options("/v1/completions", headers=headers | PREFLIGHT)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert "POST" in preflight.headers["access-control-allow-methods"]
    answer = await open_to_page.post("/v1/completions", json=BODY, headers=headers)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
    other = await open_to_page.post("/v1/completions", json=BODY, headers={"origin": f"{PAGE}.evil.example"})
    assert code(other) == (403, "origin_not_allowed")


async def test_a_page_of_an_allowed_origin_may_read_why_it_is_refused(
    open_to_page: httpx.AsyncClient,
) -> None:
    headers = {"origin": PAGE, "content-type": "text/plain"}
    answer = await open_to_page.post("/v1/completions", content=b"{}", headers=headers)
    assert code(answer) == (415, "unsupported_media_type")
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["vary"] == "Origin"
    headers["origin"] = "https://evil.example"
    other = await open_to_page.post("/v1/completions", content=b"{}", headers=headers)
    assert "access-control-allow-origin" not in other.headers


async def test_a_page_of_an_allowed_origin_may_read_that_the_gateway_failed(
    cluster: Cluster, open_to_page: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(id: RequestId) -> None:
        raise ZeroDivisionError(id)

    monkeypatch.setattr(cluster.store, "record", broken)
    answer = await open_to_page.get("/v1/requests/r", headers={"origin": PAGE})
    assert code(answer) == (500, "internal_error")
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-expose-headers"] == "*"
    other = await open_to_page.get("/v1/requests/r")
    assert code(other) == (500, "internal_error")
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1", ""]
)
async def test_a_name_that_a_page_made_resolve_to_loopback_is_refused(
    http: httpx.AsyncClient, host: str
) -> None:
    for method, path in (("GET", "/v1/models"), ("GET", "/admin/v1/requests"), ("POST", "/healthz/")):
        answer = await http.request(method, path, headers={"host": host})
        assert code(answer) == (421, "host_not_allowed")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.:8000", "127.0.0.1:1", "[::1]:8000", "127.0.0.2"])
async def test_the_names_of_loopback_are_accepted(http: httpx.AsyncClient, host: str) -> None:
    assert (await http.get("/v1/models", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"]
)
async def test_a_body_that_is_not_said_to_be_json_is_refused(
    cluster: Cluster, http: httpx.AsyncClient, content_type: str | None
) -> None:
    """Forms and scripts of any page can send these types without asking first."""
    headers = {} if content_type is None else {"content-type": content_type}
    answer = await http.post(
        "/v1/completions", content=b'{"model": "emulated", "prompt": "a"}', headers=headers
    )
    assert code(answer) == (415, "unsupported_media_type")

    async def parts() -> AsyncIterator[bytes]:
        yield b'{"model": "emulated", "prompt": "a"}'

    answer = await http.post("/v1/completions", content=parts(), headers=headers)
    assert code(answer) == (415, "unsupported_media_type")
    assert await cluster.broker.queues() == []


async def test_a_refusal_has_the_shape_of_the_api_that_was_called(http: httpx.AsyncClient) -> None:
    """Anthropic's clients look for the kind of an error in their own shape."""
    said, strange = {"content-type": "text/plain"}, {"host": "evil.example"}
    for headers, kind in ((said, "unsupported_media_type"), (strange, "host_not_allowed")):
        answer = await http.post("/v1/messages", content=b"{}", headers=headers)
        assert (answer.json()["type"], code(answer)[1]) == ("error", kind)
    assert "type" not in (await http.post("/v1/completions", content=b"{}", headers=said)).json()


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br", "gzip, identity"])
async def test_a_compressed_body_is_refused_with_the_reason(
    cluster: Cluster, http: httpx.AsyncClient, encoding: str
) -> None:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    body = gzip.compress(b'{"model": "emulated", "prompt": "a"}')
    answer = await http.post("/v1/completions", content=body, headers=headers)
    assert code(answer) == (415, "unsupported_media_type")
    error = answer.json()["error"]
    assert (error["param"], "expected a body that is not compressed" in error["message"]) == (
        "content-encoding",
        True,
    )
    upload = headers | {"content-type": "multipart/form-data; boundary=b"}
    answer = await http.post("/v1/files", content=body, headers=upload)
    assert code(answer) == (415, "unsupported_media_type")
    assert await cluster.broker.queues() == []


async def test_a_body_may_say_that_it_is_not_encoded(http: httpx.AsyncClient) -> None:
    headers = {"content-encoding": "identity"}
    assert (await http.post("/v1/completions", json=BODY, headers=headers)).status_code == 200


async def test_json_may_name_its_encoding(http: httpx.AsyncClient) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    content = b'{"model": "emulated", "prompt": "a"}'
    assert (await http.post("/v1/completions", content=content, headers=headers)).status_code == 200


async def test_a_gateway_that_is_open_to_anyone_says_so(cluster: Cluster) -> None:
    url = cluster.admin_urls[await cluster.gateway(exposures=["HTTP is open"])]
    async with httpx.AsyncClient(base_url=url, timeout=20) as client:
        assert (await client.get("/admin/v1/listeners")).json() == {"warnings": ["HTTP is open"]}
        assert "qlm_gateway_unprotected_listeners 1.0" in (await client.get("/metrics")).text


async def test_a_gateway_on_loopback_has_nothing_to_warn_of(cluster: Cluster) -> None:
    url = cluster.admin_urls[await cluster.gateway()]
    async with httpx.AsyncClient(base_url=url, timeout=20) as client:
        assert (await client.get("/admin/v1/listeners")).json() == {"warnings": []}
        assert "qlm_gateway_unprotected_listeners 0.0" in (await client.get("/metrics")).text

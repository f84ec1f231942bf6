"""What a gateway refuses over HTTP."""

import httpx
import pytest

from qlm.gateway.core.access import AccessRules
from qlm.gateway.core.limits import GatewayLimits
from support.gateway import Cluster
from support.http_calls import refusal

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("headers", [{}, {"idempotency-key": "k"}])
@pytest.mark.parametrize("field", ["model", "metadata", "messages", "tools"])
async def test_a_body_with_a_thousand_levels_is_refused_like_any_other(
    url: str, http: httpx.AsyncClient, field: str, headers: dict[str, str]
) -> None:
    for levels in (300, 1000):
        deep = b'{"a": ' * levels + b"1" + b"}" * levels
        body = b'{"model": "emulated", "messages": [], "%s": %s}' % (field.encode(), deep)
        whole = JSON | headers
        answer = await http.post(f"{url}/v1/chat/completions", content=body, headers=whole)
        assert (answer.status_code, refusal(answer)["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("path", ["/healthz/", "/readyz/", "/v1/completions/"])
async def test_no_answer_leads_a_client_to_the_host_that_it_names(
    cluster: Cluster, http: httpx.AsyncClient, path: str
) -> None:
    url = await cluster.gateway(rules=AccessRules(listens_on="0.0.0.0"))
    for method in ("GET", "POST"):
        answer = await http.request(method, url + path, headers={"host": "evil.example"})
        assert (answer.status_code, refusal(answer)["code"]) == (404, "not_found")
        assert "location" not in answer.headers


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b'{"model": "emulated", "prompt": "' + b"x" * 2000 + b'"}', 413, "body_too_large"),
        (b'{"model": "emulated"}', 400, "missing_required_parameter"),
        (b'{"model": "emulated", "prompt": "a", "slo": {"deadline_ms": -1}}', 400, "invalid_value"),
        (b'{"model": "emulated", "prompt": "a", "suffix": "b"}', 400, "unsupported_value"),
    ],
    ids=["no json", "too large", "missing", "bad slo", "unsupported"],
)
async def test_bad_bodies_are_refused_and_nothing_is_queued(
    cluster: Cluster, http: httpx.AsyncClient, body: bytes, status: int, code: str
) -> None:
    url = await cluster.gateway(limits=GatewayLimits(body_bytes_max=1024))
    answer = await http.post(f"{url}/v1/completions", content=body, headers=JSON)
    assert (answer.status_code, refusal(answer)["code"]) == (status, code)
    assert await cluster.broker.queues() == []


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("//v1//responses", "/v1/responses"),
        ("/messages", "/v1/messages"),
        ("/v1/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/v1/tokenize", "/tokenize"),
    ],
)
async def test_a_wrong_base_address_is_answered_with_the_path_that_was_meant(
    url: str, http: httpx.AsyncClient, path: str, meant: str
) -> None:
    answer = await http.post(url + path, json={})
    assert (answer.status_code, refusal(answer)["code"]) == (404, "not_found")
    assert refusal(answer)["message"] == f"POST {path}: Not Found; did you mean {meant}?"
    unlike = await http.post(f"{url}/v1/chats", json={})
    assert refusal(unlike)["message"] == "POST /v1/chats: Not Found"


async def test_unknown_paths_and_methods_get_openais_error_shape(url: str, http: httpx.AsyncClient) -> None:
    assert refusal(await http.get(f"{url}/v2/x"))["code"] == "not_found"
    answer = await http.get(f"{url}/v1/completions")
    assert (answer.status_code, refusal(answer)["code"]) == (405, "method_not_allowed")
    several = await http.put(f"{url}/v1/requests/r")
    assert (several.status_code, several.headers["allow"]) == (405, "DELETE, GET, HEAD")

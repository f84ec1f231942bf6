"""What a gateway says of itself, and the tokens of its models, over HTTP."""

import re
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest

from qlm.gateway.core.access import AccessRules
from qlm.gateway.http.vllm.unsupported import UNSUPPORTED
from support.gateway import Cluster, running_cluster

CHAT: dict[str, Any] = {"model": "emulated", "messages": [{"role": "user", "content": "Why?"}]}

AS_OPERATOR = {"authorization": "Bearer secret"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


@pytest.fixture
async def http(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=await cluster.gateway(), timeout=20) as client:
        yield client


async def test_each_listener_serves_the_document_of_its_routes(cluster: Cluster) -> None:
    url = await cluster.gateway(admin_rules=AccessRules(token="secret"))
    async with httpx.AsyncClient(timeout=20) as client:
        own = (await client.get(f"{url}/openapi.json")).json()
        of_operators = (await client.get(f"{cluster.admin_urls[url]}/openapi.json")).json()
        assert "/v1/chat/completions" in own["paths"] and "/metrics" not in own["paths"]
        assert "/metrics" in of_operators["paths"] and "/v1/models" not in of_operators["paths"]
        assert own["info"]["version"] == version("qlm-serving")
        wrong_method = await client.put(f"{cluster.admin_urls[url]}/admin/v1/dead/retry", headers=AS_OPERATOR)
        assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "POST")
        refused = await client.get(f"{cluster.admin_urls[url]}/metrics")
        assert refused.status_code == 401, "only the document is for anyone"


async def test_the_page_loads_nothing_from_elsewhere(http: httpx.AsyncClient) -> None:
    page = await http.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].startswith("default-src 'none'; ")
    assert not re.search(
        r"(src|href)\s*=|https?://|@import|url\(", page.text.replace('href="openapi.json"', "")
    )


async def test_the_version(http: httpx.AsyncClient) -> None:
    assert (await http.get("/version")).json() == {"version": version("qlm-serving")}


async def test_a_text_becomes_tokens_and_text_again(http: httpx.AsyncClient) -> None:
    text = "Größe: 3 🙂"
    body = {"model": "emulated", "prompt": text, "return_token_strs": True}
    tokens = (await http.post("/tokenize", json=body)).json()
    assert tokens["tokens"] == list(text.encode())
    assert (tokens["count"], tokens["max_model_len"]) == (len(text.encode()), 4096)
    assert tokens["token_strs"][:4] == ["G", "r", "<0xC3>", "<0xB6>"]
    back = await http.post("/detokenize", json={"model": "emulated", "tokens": tokens["tokens"]})
    assert back.json() == {"prompt": text}
    part = await http.post("/detokenize", json={"model": "emulated", "tokens": list(b"Gr\xc3")})
    assert part.json() == {"prompt": "Gr\ufffd"}, "the last character is not whole"


async def test_a_conversation_has_as_many_tokens_as_its_chat(http: httpx.AsyncClient) -> None:
    defaults = {"add_generation_prompt": True, "chat_template": None, "add_special_tokens": False}
    tokens = (await http.post("/tokenize", json=CHAT | defaults)).json()
    answer = (await http.post("/v1/chat/completions", json=CHAT | {"max_tokens": 1})).json()
    assert tokens["count"] == answer["usage"]["prompt_tokens"]
    assert tokens["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (
            "/tokenize",
            CHAT | {"add_generation_prompt": False},
            400,
            "add_generation_prompt is false; expected",
        ),
        ("/tokenize", {"prompt": "a"}, 400, "model is missing; expected one of emulated, small"),
        ("/tokenize", {"model": "emulated"}, 400, "prompt is missing; expected a value"),
        ("/tokenize", {"model": "other", "prompt": "a"}, 404, 'model is "other"; expected one of'),
        (
            "/tokenize",
            {"model": "small", "prompt": "a", "max_tokens": 2},
            400,
            "max_tokens is 2; expected no",
        ),
        ("/tokenize", CHAT | {"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools is "),
        (
            "/detokenize",
            {"model": "small", "tokens": [1, 257]},
            400,
            "tokens has 257; expected token ids below 257",
        ),
        ("/detokenize", {"model": "small", "tokens": "a"}, 400, 'tokens is "a"; expected a valid list'),
    ],
)
async def test_what_cannot_be_tokenized_is_refused_by_name(
    http: httpx.AsyncClient, path: str, body: object, status: int, message: str
) -> None:
    answer = await http.post(path, json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["message"].startswith(message)


async def test_routes_of_other_kinds_of_models_are_refused_by_name(http: httpx.AsyncClient) -> None:
    for path in UNSUPPORTED:
        answer = await http.post(path, json={"model": "emulated", "input": "a"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "endpoint_not_supported")
        assert answer.json()["error"]["message"].startswith(f"POST {path} is not supported: QLM serves")

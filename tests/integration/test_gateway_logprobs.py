"""Log probabilities over real HTTP: OpenAI's unmodified client, whole, streamed, resumed, beside tools."""

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from qlm.domain.ids import RequestId
from qlm.simulator.emulation.vllm_logprobs import candidates
from support.gateway import Cluster, running_cluster, text_then_end, until
from support.rendering import emulated_answer, emulated_tiers

CHAT: dict[str, Any] = {"model": "emulated", "messages": [{"role": "user", "content": "Hi"}]}
SCORED: dict[str, Any] = {**CHAT, "logprobs": True, "top_logprobs": 2}
TEXT: dict[str, Any] = {"model": "emulated", "prompt": "Once", "logprobs": 2}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        running.agent.answer = lambda request: text_then_end("Größe")
        yield running


@pytest.fixture
async def http(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        emulated_tiers("emulated") as tiers,
        httpx.AsyncClient(base_url=await cluster.gateway(render_tiers=tiers), timeout=20) as made,
    ):
        yield made


async def events(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await http.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    data = [line[6:] for line in answer.text.split("\n") if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


def content_of(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put together the log probabilities of a streamed chat."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return [entry for each in choices if each["logprobs"] for entry in each["logprobs"]["content"]]


async def test_each_token_of_a_chat_has_its_text_and_candidates(http: httpx.AsyncClient) -> None:
    async with openai.AsyncOpenAI(base_url=f"{http.base_url}/v1", api_key="any", max_retries=0) as client:
        answer = await client.chat.completions.create(**SCORED)
    (choice,) = answer.choices
    assert choice.logprobs is not None and choice.logprobs.content is not None
    content = choice.logprobs.content
    assert "".join(entry.token for entry in content) == choice.message.content == "Größe"
    assert [entry.token for entry in content][2:4] == ["", "ö"], "a token within a character has no text"
    assert answer.usage is not None and len(content) == answer.usage.completion_tokens
    assert all(entry.logprob == pytest.approx(math.log(0.6)) for entry in content)
    assert [len(entry.top_logprobs) for entry in content] == [2] * len(content)
    assert content[0].top_logprobs[0].token == "G"
    expected = candidates(b"user: Hi\nassistant:", ord("G"), 2)
    assert content[0].top_logprobs[1].logprob == pytest.approx(expected[1][1])


async def test_a_streamed_chat_has_the_log_probabilities_of_the_whole_one(http: httpx.AsyncClient) -> None:
    whole = (await http.post("/v1/chat/completions", json=SCORED)).json()["choices"][0]["logprobs"]["content"]
    assert content_of(await events(http, "/v1/chat/completions", SCORED)) == whole


async def test_a_completion_lists_offsets_and_candidates_by_text(http: httpx.AsyncClient) -> None:
    found = (await http.post("/v1/completions", json=TEXT)).json()["choices"][0]["logprobs"]
    assert found["tokens"] == ["G", "r", "", "ö", "", "ß", "e", ""]
    assert found["text_offset"] == [0, 1, 2, 2, 3, 3, 4, 5]
    assert found["top_logprobs"][0]["G"] == found["token_logprobs"][0] == pytest.approx(math.log(0.6))
    assert len(found["top_logprobs"][0]) == 2
    chunks = await events(http, "/v1/completions", TEXT)
    parts = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    assert {name: [value for part in parts for value in part[name]] for name in found} == found


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["plain", "tools"])
async def test_a_resumed_stream_has_each_token_once(
    http: httpx.AsyncClient, cluster: Cluster, tools: list[Any] | None
) -> None:
    if tools:
        cluster.agent.answer = emulated_answer
    body = {**SCORED, "tools": tools, "max_tokens": 24}
    whole = (await http.post("/v1/chat/completions", json=body)).json()
    answer = await http.post("/v1/chat/completions", json=body, headers={"prefer": "respond-async"})
    id = RequestId(answer.json()["id"])
    await until(lambda: id in cluster.agent.ended)
    one = whole["choices"][0]["logprobs"]["content"]
    for shown in (0, 1, 5):
        rest = await http.get(f"/v1/requests/{id}/events", headers={"last-event-id": str(shown)})
        data = [line[6:] for line in rest.text.split("\n") if line.startswith("data: ")]
        found = content_of([json.loads(each) for each in data if each != "[DONE]"])
        assert [entry["token"] for entry in found] == [entry["token"] for entry in one[shown:]]
        assert found == one[shown:]


@pytest.mark.parametrize(
    ("path", "further", "param"),
    [
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("/v1/chat/completions", {"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
        ("/v1/chat/completions", {"logprobs": 1}, "logprobs"),
        ("/v1/completions", {"logprobs": 20}, "logprobs"),
        ("/v1/completions", {"logprobs": True}, "logprobs"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    http: httpx.AsyncClient, path: str, further: dict[str, Any], param: str
) -> None:
    body = CHAT if "chat" in path else {"model": "emulated", "prompt": "Once"}
    answer = await http.post(path, json={**body, **further})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text

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
        ("/v1/completions", {"logprobs": 19, "echo": True, "prompt": "a" * 4000}, "logprobs"),
        ("/v1/completions", {"prompt_logprobs": 21}, "prompt_logprobs"),
        ("/v1/completions", {"prompt_logprobs": -1}, "prompt_logprobs"),
        ("/v1/chat/completions", {"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    http: httpx.AsyncClient, path: str, further: dict[str, Any], param: str
) -> None:
    body = CHAT if "chat" in path else {"model": "emulated", "prompt": "Once"}
    answer = await http.post(path, json={**body, **further})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


async def test_with_echo_the_prompt_has_them_before_the_answer(http: httpx.AsyncClient) -> None:
    body = {**TEXT, "prompt": "Öl", "echo": True}
    (choice,) = (await http.post("/v1/completions", json=body)).json()["choices"]
    found = choice["logprobs"]
    assert choice["text"] == "ÖlGröße"
    assert found["tokens"] == ["", "Ö", "l", "G", "r", "", "ö", "", "ß", "e", ""]
    assert found["text_offset"] == [0, 0, 1, 2, 3, 4, 4, 5, 5, 6, 7]
    assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
    assert found["token_logprobs"][1:] == [pytest.approx(math.log(0.6))] * 10
    assert [len(each) for each in found["top_logprobs"][2:6]] == [2, 2, 2, 2]
    chunks = await events(http, "/v1/completions", body)
    parts = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    assert {name: [value for part in parts for value in part[name]] for name in found} == found
    listed = choice["prompt_logprobs"]
    assert listed[0] is None
    assert [next(iter(each)) for each in listed[1:]] == [str(id) for id in "Öl".encode()[1:]]


async def test_of_a_stream_resumed_within_its_answer_the_prompt_comes_no_more(
    http: httpx.AsyncClient, cluster: Cluster
) -> None:
    body = {**TEXT, "echo": True}
    whole = (await http.post("/v1/completions", json=body)).json()["choices"][0]["logprobs"]
    answer = await http.post("/v1/completions", json=body, headers={"prefer": "respond-async"})
    id = RequestId(answer.json()["id"])
    await until(lambda: id in cluster.agent.ended)
    for shown, left_out in ((0, 0), (1, 5), (4, 8)):
        rest = await http.get(f"/v1/requests/{id}/events", headers={"last-event-id": str(shown)})
        data = [line[6:] for line in rest.text.split("\n") if line.startswith("data: ")]
        chunks = [json.loads(each) for each in data if each != "[DONE]"]
        parts = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
        for name, values in whole.items():
            assert [value for part in parts for value in part[name]] == values[left_out:], (shown, name)


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["plain", "tools"])
async def test_each_token_of_a_prompt_has_its_candidates_by_id(
    http: httpx.AsyncClient, cluster: Cluster, tools: list[Any] | None
) -> None:
    if tools:
        cluster.agent.answer = emulated_answer
    body = {**CHAT, "prompt_logprobs": 2, "tools": tools}
    answer = (await http.post("/v1/chat/completions", json=body)).json()
    listed = answer["prompt_logprobs"]
    assert len(listed) == answer["usage"]["prompt_tokens"]
    assert listed[0] is None
    for candidates_by_id in listed[1:]:
        own, other = candidates_by_id.values()
        assert (own["rank"], other["rank"]) == (1, 2)
        assert own["logprob"] == pytest.approx(math.log(0.6))
    assert answer["choices"][0]["logprobs"] is None
    if not tools:
        assert listed[1]["115"]["decoded_token"] == "s"  # of "user: Hi"


async def test_each_choice_of_a_family_has_those_of_its_prompt(http: httpx.AsyncClient) -> None:
    prompts = ["Once", "Upon"]
    body = {"model": "emulated", "prompt": prompts, "prompt_logprobs": 0}
    choices = (await http.post("/v1/completions", json=body)).json()["choices"]
    for prompt, choice in zip(prompts, choices, strict=True):
        assert [list(each or ()) for each in choice["prompt_logprobs"]] == [
            [],
            *([str(id)] for id in prompt.encode()[1:]),
        ]


async def test_those_that_the_log_lacks_are_null(http: httpx.AsyncClient, cluster: Cluster) -> None:
    cluster.agent.scores_prompts = False
    (choice,) = (await http.post("/v1/completions", json={**TEXT, "echo": True})).json()["choices"]
    assert choice["logprobs"]["tokens"][:5] == ["Once", "", "", "", "G"]
    assert choice["logprobs"]["text_offset"][:5] == [0, 4, 4, 4, 4]
    assert choice["logprobs"]["token_logprobs"][:4] == [None] * 4
    assert choice["prompt_logprobs"] is None

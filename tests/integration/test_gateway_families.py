"""Several answers to one call: `n`, lists of prompts, their ids, end, refusal, retry and cancel."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from qlm.broker.codec import decode_request
from qlm.domain.byte_tokens import EOS_ID
from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.ids import QueueName
from qlm.domain.outcome import Outcome
from qlm.domain.ports.broker import Broker
from qlm.domain.request import Request
from qlm.domain.view import RequestFilter
from qlm.gateway.core.limits import GatewayLimits
from support.gateway import Cluster, running_cluster, text_then_end, until

CHAT: dict[str, Any] = {"model": "emulated", "messages": [{"role": "user", "content": "Hi"}]}
TEXT: dict[str, Any] = {"model": "emulated", "prompt": ["Once", "upon a", "time"]}
LIMITS = GatewayLimits(choices_max=50, queue_depth_max=40)


def answer_of(request: Request) -> Sequence[int]:
    """Answer each request by its own number, and its prompt."""
    prompt = bytes(id for id in request.prompt_ids if id < EOS_ID).decode()
    return text_then_end(f"{request.extensions.choice or 0}: {prompt[:6]}")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        running.agent.answer = answer_of
        running.limits = LIMITS
        yield running


@pytest.fixture
async def http(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=await cluster.gateway(), timeout=20) as made:
        yield made


def chunks_of(text: str) -> list[dict[str, Any]]:
    data = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    assert data[-1] == "[DONE]" and data.count("[DONE]") == 1
    return [json.loads(each) for each in data[:-1]]


def texts_of(chunks: list[dict[str, Any]]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        new = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        texts[choice["index"]] = texts.get(choice["index"], "") + new
    return texts


async def test_n_answers_are_choices_of_one_object(http: httpx.AsyncClient, cluster: Cluster) -> None:
    async with openai.AsyncOpenAI(base_url=f"{http.base_url}/v1", api_key="any", max_retries=0) as client:
        answer = await client.chat.completions.create(**CHAT, n=3, seed=7)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [
        (at, f"{at}: user: ") for at in range(3)
    ]
    assert answer.usage is not None
    prompt_tokens = len(b"user: Hi\nassistant:")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt_tokens, 3 * 10)
    seeds = {each.id: each.sampling.seed for each in cluster.agent.leased}
    first = answer.id.removeprefix("chatcmpl-")
    assert seeds == {first: 7, f"{first}.1": 8, f"{first}.2": 9}


@pytest.mark.parametrize("prompt", [TEXT["prompt"], [list(each.encode()) for each in TEXT["prompt"]]])
async def test_each_prompt_of_a_list_gets_n_answers(http: httpx.AsyncClient, prompt: list[Any]) -> None:
    body = {**TEXT, "prompt": prompt, "n": 2, "echo": True}
    answer = (await http.post("/v1/completions", json=body)).json()
    texts = [(choice["index"], choice["text"]) for choice in answer["choices"]]
    prompts = [each for each in TEXT["prompt"] for _ in range(2)]
    assert texts == [(at, f"{text}{at}: {text[:6]}") for at, text in enumerate(prompts)]
    assert answer["usage"]["prompt_tokens"] == sum(map(len, TEXT["prompt"]))


@pytest.mark.parametrize(("path", "body"), [("chat/completions", {**CHAT, "n": 2}), ("completions", TEXT)])
async def test_a_stream_has_all_answers_and_one_end(
    http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    whole = (await http.post(f"/v1/{path}", json=body)).json()
    wanted = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = chunks_of((await http.post(f"/v1/{path}", json=body | wanted)).text)
    assert len({chunk["id"] for chunk in chunks}) == 1
    expected = {each["index"]: each["text"] if "text" in each else each["message"]["content"]
                for each in whole["choices"]}  # fmt: skip
    assert texts_of(chunks) == expected
    assert [chunk["usage"] for chunk in chunks if chunk["usage"]] == [whole["usage"]]
    finishes = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert finishes.count("stop") == len(expected)


async def test_answers_are_interleaved(http: httpx.AsyncClient, cluster: Cluster) -> None:
    cluster.agent.pause_at = 3
    seen: set[int] = set()
    async with http.stream("POST", "/v1/completions", json={**TEXT, "stream": True}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                seen |= {choice["index"] for choice in json.loads(line[6:])["choices"]}
            if len(seen) == 3 and not cluster.agent.go.is_set():
                assert cluster.agent.ended == {}
                cluster.agent.go.set()
    assert len(cluster.agent.ended) == 3


async def test_a_family_that_does_not_fit_is_refused_whole(http: httpx.AsyncClient, cluster: Cluster) -> None:
    for count, status, code in ((51, 400, "invalid_value"), (41, 400, "request_too_large")):
        answer = await http.post("/v1/chat/completions", json={**CHAT, "n": count})
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    long = await http.post("/v1/completions", json={"model": "small", "prompt": ["a", "b" * 64]})
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert await cluster.broker.queues() == []


async def test_a_client_that_leaves_ends_all(http: httpx.AsyncClient, cluster: Cluster) -> None:
    cluster.agent.pause_at = 2
    async with http.stream("POST", "/v1/completions", json={**TEXT, "stream": True}) as response:
        await anext(response.aiter_lines())
        await until(lambda: len(cluster.agent.leased) == 3)
    await until(lambda: list(cluster.agent.ended.values()) == [Outcome.CANCELLED] * 3)


async def test_the_first_id_stands_for_all(http: httpx.AsyncClient, cluster: Cluster) -> None:
    cluster.agent.pause_at = 2
    answer = await http.post("/v1/completions", json=TEXT, headers={"prefer": "respond-async"})
    id = answer.json()["id"]
    await until(lambda: len(cluster.agent.leased) == 3)
    assert (await http.get(f"/v1/requests/{id}")).json()["status"] == "running"
    assert (await http.post(f"/v1/requests/{id}/cancel")).status_code == 200
    await until(lambda: list(cluster.agent.ended.values()) == [Outcome.CANCELLED] * 3)
    cluster.agent.go.set()
    answer = await http.post("/v1/completions", json=TEXT, headers={"prefer": "respond-async"})
    id = answer.json()["id"]
    await until(lambda: len(cluster.agent.ended) == 6)
    found = (await http.get(f"/v1/requests/{id}")).json()
    assert [choice["text"] for choice in found["response"]["choices"]] == ["0: Once", "1: upon a", "2: time"]
    each = [(await http.get(f"/v1/requests/{id}{suffix}")).json() for suffix in (".1", ".2")]
    assert each[0]["response"]["choices"][0]["index"] == 1
    assert found["output_tokens"] == found["response"]["usage"]["completion_tokens"]
    assert found["prompt_tokens"] == found["response"]["usage"]["prompt_tokens"]
    assert found["ended_s"] >= max(one["ended_s"] for one in each)


async def test_a_retry_with_a_key_finds_all_answers(http: httpx.AsyncClient, cluster: Cluster) -> None:
    headers = {"idempotency-key": "k"}
    first = (await http.post("/v1/completions", json=TEXT, headers=headers)).json()
    again = (await http.post("/v1/completions", json=TEXT, headers=headers)).json()
    assert again == first
    assert len(cluster.agent.leased) == 3
    other = await http.post("/v1/completions", json={**TEXT, "n": 2}, headers=headers)
    assert other.status_code == 422


async def test_a_key_whose_client_left_before_the_last_answer_is_tried_anew(
    http: httpx.AsyncClient, cluster: Cluster
) -> None:
    """The first answer, under whose id the call is found, had ended well."""
    cluster.agent.pause_at = 2
    cluster.agent.answer = lambda request: text_then_end("Hello" if request.extensions.choice else "")
    body, headers = {**CHAT, "n": 2, "resume_grace_s": 0}, {"idempotency-key": "k"}
    first = asyncio.create_task(http.post("/v1/chat/completions", json=body, headers=headers))
    await until(lambda: list(cluster.agent.ended.values()) == [Outcome.STOP])
    first.cancel()
    await until(lambda: list(cluster.agent.ended.values()) == [Outcome.STOP, Outcome.CANCELLED])
    cluster.agent.go.set()
    again = await http.post("/v1/chat/completions", json=body, headers=headers)
    assert again.status_code == 200, again.text
    assert [each["message"]["content"] for each in again.json()["choices"]] == ["", "Hello"]


async def test_an_answer_that_ends_badly_ends_the_others(http: httpx.AsyncClient, cluster: Cluster) -> None:
    cluster.agent.fail_with = (Outcome.FAILED, "broken")
    answer = await http.post("/v1/completions", json=TEXT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "failed")
    for _ in range(5):
        stream = await http.post("/v1/completions", json={**TEXT, "stream": True})
        data = [line[6:] for line in stream.text.split("\n") if line.startswith("data: ")]
        assert data[-1] == "[DONE]" and "error" in json.loads(data[-2])
        assert data.count("[DONE]") == 1 and stream.text.count("event: error") == 1


class LastFails:
    """A broker that takes all messages but the last of a family."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def publish(self, queue: QueueName, body: bytes) -> None:
        if decode_request(body).extensions.choice == 0:
            raise BrokerUnavailableError("out of order")
        await self._broker.publish(queue, body)


async def test_what_the_queue_does_not_take_is_accepted_in_no_part(cluster: Cluster) -> None:
    cluster.agent.pause_at = 1
    url = await cluster.gateway(broker=LastFails(cluster.broker))
    async with httpx.AsyncClient(base_url=url, timeout=20) as http:
        answer = await http.post("/v1/completions", json=TEXT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "broker_unavailable")

    async def all_cancelled() -> bool:
        records = await cluster.store.records(RequestFilter())
        return [each.outcome for each in records] == [Outcome.CANCELLED] * 3

    await until(all_cancelled)


class Away:
    """A broker that takes no message while it is away."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.away = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def publish(self, queue: QueueName, body: bytes) -> None:
        if self.away:
            raise BrokerUnavailableError("away")
        await self._broker.publish(queue, body)


@pytest.mark.parametrize("waits", [True, False])
async def test_a_key_that_came_while_the_queue_was_away_is_answered_once_it_is_back(
    cluster: Cluster, waits: bool
) -> None:
    headers = {"idempotency-key": "k"} | ({} if waits else {"prefer": "respond-async"})
    broker = Away(cluster.broker)
    async with httpx.AsyncClient(base_url=await cluster.gateway(broker=broker), timeout=20) as http:
        for _ in range(2):
            refused = await http.post("/v1/completions", json=TEXT, headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "broker_unavailable")
        broker.away = False
        answer = await http.post("/v1/completions", json=TEXT, headers=headers)
        assert answer.status_code == (200 if waits else 202), answer.text
        await until(lambda: list(cluster.agent.ended.values()) == [Outcome.STOP] * 3)
        again = await http.post("/v1/completions", json=TEXT, headers={"idempotency-key": "k"})
        texts = [each["text"] for each in again.json()["choices"]]
        assert texts == ["0: Once", "1: upon a", "2: time"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({**TEXT, "n": 0}, "n"),
        ({**TEXT, "n": True}, "n"),
        ({**TEXT, "prompt": ["a", ""]}, "prompt"),
        ({**TEXT, "prompt": ["a", 5]}, "prompt"),
        ({**TEXT, "suffix": "end"}, "suffix"),
        ({**TEXT, "echo": True, "logprobs": 20}, "logprobs"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    http: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    answer = await http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


async def test_a_resumable_stream_of_several_answers_is_refused(http: httpx.AsyncClient) -> None:
    body = {**TEXT, "stream": True}
    answer = await http.post("/v1/completions", json=body, headers={"x-qlm-stream": "resumable"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-qlm-stream")


SCHEMA = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}


@pytest.mark.parametrize(
    ("further", "constraint"),
    [
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": SCHEMA}}},
            {"json": SCHEMA},
        ),
        ({"structured_outputs": {"choice": ["a", "b"], "regex": None}}, {"choice": ["a", "b"]}),
        ({"response_format": {"type": "text"}}, None),
    ],
)
async def test_the_answers_to_prompts_may_have_a_form(
    http: httpx.AsyncClient, cluster: Cluster, further: dict[str, Any], constraint: dict[str, Any] | None
) -> None:
    answer = await http.post("/v1/completions", json={**TEXT, **further})
    assert answer.status_code == 200, answer.text
    found = {each.sampling.grammar for each in cluster.agent.leased}
    wanted = json.dumps({"structured_outputs": constraint}, separators=(",", ":"))
    assert found == {"" if constraint is None else wanted}

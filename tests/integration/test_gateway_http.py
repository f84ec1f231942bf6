"""The gateway over real HTTP: uvicorn on loopback, OpenAI's unmodified client, a real store and broker."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest

from qlm.agents.batching.call_objective import call_objective
from qlm.broker.codec import decode_request
from qlm.controller.core.history.codec import history_to_plain
from qlm.controller.core.history.history import History
from qlm.domain.byte_tokens import EOS_ID
from qlm.domain.errors import BrokerUnavailableError, StoreUnavailableError
from qlm.domain.formats.clusters import CLUSTERS, Clusters
from qlm.domain.group import RequestClass
from qlm.domain.ids import ControllerId, GatewayId, GroupId, InstanceId, ModelId, QueueName, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.output import OutputSlice
from qlm.domain.plan_change import CreateGroup, SetQueue
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.published import PublishedKind
from qlm.domain.request import RequestMetadata, RequestRecord, RequestState
from qlm.domain.slo import ReadingSlo
from qlm.domain.view import Enqueued, RequestFilter
from qlm.gateway.core.access import AccessRules
from qlm.gateway.core.limits import GatewayLimits
from qlm.store.embedded.memory import MemoryStore
from support.gateway import MODELS, Cluster, SystemClock, mark_indexed, running_cluster, text_then_end, until

CHAT: dict[str, Any] = {"model": "emulated", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION: dict[str, Any] = {"model": "emulated", "prompt": "Hi"}
JSON = {"content-type": "application/json"}
RESUMABLE = {"x-qlm-stream": "resumable"}
ANSWER = "Hello, world!"
QUEUED = RequestFilter(state=RequestState.QUEUED)
ENDED = RequestFilter(state=RequestState.ENDED)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


@pytest.fixture
async def url(cluster: Cluster) -> str:
    return await cluster.gateway()


@pytest.fixture
def admin_url(cluster: Cluster, url: str) -> str:
    return cluster.admin_urls[url]


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=20) as client:
        yield client


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as made:
        yield made


class Events:
    """A stream read block by block."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()
        self.last_id: str | None = None

    async def __aiter__(self) -> AsyncIterator[str]:
        async for line in self._lines:
            if line.startswith("id: "):
                self.last_id = line[4:]
            if line.startswith("data: "):
                yield line[6:]

    async def text(self, *, until_tokens: int | None = None, until_text: str | None = None) -> str:
        """Join the text of completion events, up to the one with that id, to that text, or to the end."""
        pieces = []
        async for data in self:
            if data == "[DONE]":
                break
            for choice in orjson.loads(data)["choices"]:
                pieces.append(choice["text"])
            if until_tokens is not None and self.last_id == str(until_tokens):
                break
            if until_text is not None and "".join(pieces) == until_text:
                break
        return "".join(pieces)


def refusal(response: httpx.Response) -> dict[str, Any]:
    """The error object, after checking what all errors have."""
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
    return error


# --- OpenAI's client


async def test_chat_is_answered(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**CHAT)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (19, 14)
    assert answer.id == f"chatcmpl-{answer._request_id}"


async def test_chat_is_streamed_with_role_first_and_usage_last(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 33


async def test_completions_are_answered_and_streamed(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(**COMPLETION, max_tokens=5)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello", "length")
    stream = await client.completions.create(**COMPLETION, stream=True, max_tokens=5)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_answer_says_what_vllms_answers_say(
    cluster: Cluster, url: str, http: httpx.AsyncClient, stream: bool
) -> None:
    cluster.agent.cached_tokens = 1
    body = COMPLETION | {"stream": stream, "stream_options": {"include_usage": True}, "stop": ["world", "!"]}
    ended = await http.post(f"{url}/v1/completions", json=body | {"stop": [], "stop_token_ids": [EOS_ID, 33]})
    stopped = await http.post(f"{url}/v1/completions", json=body)
    whole = [orjson.loads(ended.content)] if not stream else data_of(ended.text)
    by_text = [orjson.loads(stopped.content)] if not stream else data_of(stopped.text)
    assert whole[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert [each["stop_reason"] for part in whole for each in part["choices"] if each["finish_reason"]] == [
        None
    ]
    assert by_text[-1]["usage"]["completion_tokens"] == 12
    ends = [each for part in by_text for each in part["choices"] if each["finish_reason"]]
    assert [each["stop_reason"] for each in ends] == ["world"]
    (fingerprint,) = {each["system_fingerprint"] for each in (*whole, *by_text)}
    assert fingerprint.startswith("qlm-")
    later = (await http.get(f"{url}/v1/requests/{ended.headers['x-request-id']}")).json()["response"]
    assert later["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert later["system_fingerprint"] == fingerprint


def data_of(events: str) -> list[dict[str, Any]]:
    """The objects of a stream."""
    lines = (line.removeprefix("data: ") for line in events.splitlines() if line.startswith("data: {"))
    return [orjson.loads(line) for line in lines]


async def test_prompts_may_be_token_ids(client: openai.AsyncOpenAI, cluster: Cluster) -> None:
    await client.completions.create(model="emulated", prompt=[72, 105])
    assert cluster.agent.leased[0].prompt_ids == (72, 105)


async def test_health_is_there_for_clients_of_vllm(url: str, http: httpx.AsyncClient) -> None:
    answer = await http.get(f"{url}/health")
    assert (answer.status_code, answer.json()) == (200, (await http.get(f"{url}/readyz")).json())


async def test_models_are_listed(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["emulated", "small"]
    small = await client.models.retrieve("small")
    assert (small.id, time.time() - small.created < 600) == ("small", True)


async def test_the_only_model_need_not_be_named(cluster: Cluster, http: httpx.AsyncClient) -> None:
    only = await cluster.gateway(models=MODELS[:1])
    assert (await http.post(f"{only}/v1/completions", json={"prompt": "Hi"})).json()["model"] == "emulated"
    two = await cluster.gateway()
    error = refusal(await http.post(f"{two}/v1/completions", json={"prompt": "Hi"}))
    assert (error["param"], error["code"]) == ("model", "missing_required_parameter")
    assert error["message"] == "model is missing; expected one of emulated, small"


async def test_errors_are_raised_as_the_right_classes(client: openai.AsyncOpenAI, cluster: Cluster) -> None:
    with pytest.raises(openai.NotFoundError, match="emulated, small"):
        await client.completions.create(model="nope", prompt="Hi")
    with pytest.raises(openai.BadRequestError, match="expected at most") as caught:
        await client.completions.create(model="small", prompt="Hi", max_tokens=100)
    assert (caught.value.param, caught.value.code) == ("max_tokens", "context_length_exceeded")
    cluster.agent.fail_with = (Outcome.ENGINE_LOST, "power cut")
    with pytest.raises(openai.InternalServerError, match="power cut") as lost:
        await client.completions.create(**COMPLETION)
    assert lost.value.status_code == 503


async def test_an_error_in_mid_stream_is_raised_after_the_text(
    client: openai.AsyncOpenAI, cluster: Cluster
) -> None:
    cluster.agent.answer = lambda request: b"Half"
    cluster.agent.fail_with = (Outcome.ENGINE_LOST, "power cut")
    stream = await client.completions.create(**COMPLETION, stream=True)
    text = ""
    with pytest.raises(openai.APIError, match="power cut") as caught:
        async for chunk in stream:
            text += chunk.choices[0].text
    assert (text, caught.value.code) == ("Half", "engine_lost")


@pytest.mark.parametrize("kind", ["resumable", "plain"])
async def test_a_silent_stream_goes_on_undisturbed(cluster: Cluster, kind: str) -> None:
    limits = GatewayLimits(keepalive_s=0.05)
    cluster.agent.pause_at = 6
    url = await cluster.gateway(limits=limits)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        stream = await client.completions.create(
            **COMPLETION, stream=True, extra_headers={"x-qlm-stream": kind}
        )
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].text
            if text == ANSWER[:6]:
                asyncio.get_running_loop().call_later(0.4, cluster.agent.go.set)
        assert text == ANSWER


async def test_a_full_queue_makes_the_client_wait_and_succeed(cluster: Cluster) -> None:
    limits = GatewayLimits(queue_depth_max=1, view_interval_s=0.01, retry_after_max_s=1)
    cluster.agent.working.clear()
    url = await cluster.gateway(limits=limits)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as impatient:
        first = asyncio.create_task(impatient.completions.create(**COMPLETION))
        await until(lambda: cluster.store.records(QUEUED))
        with pytest.raises(openai.RateLimitError) as caught:
            await impatient.completions.create(**COMPLETION)
        assert float(caught.value.response.headers["retry-after-ms"]) == 1000
        assert caught.value.response.headers["x-llm-d-request-dropped-reason"] == "queue_full"
        patient = impatient.with_options(max_retries=100)
        second = asyncio.create_task(patient.completions.create(**COMPLETION))
        cluster.agent.working.set()
        assert (await first).choices[0].text == (await second).choices[0].text == ANSWER


# --- resuming


async def test_a_broken_stream_continues_on_another_gateway(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    answer = "Grüße aus der Warteschlange, 日本"
    cluster.agent.answer = lambda request: text_then_end(answer)
    cluster.agent.pause_at = 9
    body = COMPLETION | {"stream": True, "max_tokens": 100}
    async with http.stream("POST", f"{url}/v1/completions", json=body, headers=RESUMABLE) as response:
        id = response.headers["x-request-id"]
        events = Events(response)
        text = await events.text(until_tokens=9)
    cluster.agent.go.set()
    other = await cluster.gateway()
    resumed = {"last-event-id": str(events.last_id)}
    async with http.stream("GET", f"{other}/v1/requests/{id}/events", headers=resumed) as response:
        text += await Events(response).text()
    assert text == answer


@pytest.mark.parametrize("offset", [0, 5, 14])
async def test_an_ended_stream_can_be_read_again_from_any_offset(
    url: str, http: httpx.AsyncClient, offset: int
) -> None:
    made = await http.post(f"{url}/v1/completions", json=COMPLETION)
    events = f"{url}/v1/requests/{made.headers['x-request-id']}/events?offset={offset}"
    async with http.stream("GET", events) as response:
        assert await Events(response).text() == ANSWER[offset:]


async def test_an_id_beyond_the_answer_is_lost_output(url: str, http: httpx.AsyncClient) -> None:
    made = await http.post(f"{url}/v1/completions", json=COMPLETION)
    events = await http.get(f"{url}/v1/requests/{made.headers['x-request-id']}/events?offset=99")
    assert '"code":"output_lost"' in events.text
    assert events.text.endswith("data: [DONE]\n\n")


async def test_a_senseless_id_is_refused(url: str, http: httpx.AsyncClient) -> None:
    made = await http.post(f"{url}/v1/completions", json=COMPLETION)
    events = f"{url}/v1/requests/{made.headers['x-request-id']}/events"
    assert refusal(await http.get(events, headers={"last-event-id": "x"}))["param"] == "Last-Event-ID"
    beside = await http.get(f"{events}?offset=x", headers={"last-event-id": "0"})
    assert refusal(beside)["param"] == "offset", "though the header wins"
    long = await http.get(events, headers={"last-event-id": "9" * 5000})
    assert (long.status_code, refusal(long)["param"]) == (400, "Last-Event-ID")
    assert len(refusal(long)["message"]) < 400


@pytest.mark.parametrize("headers", [RESUMABLE, {"last-event-id": "0"}])
async def test_a_stream_has_ids_only_if_its_client_asks_for_them(
    url: str, http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    body = COMPLETION | {"stream": True}
    with_ids = await http.post(f"{url}/v1/completions", json=body, headers=headers)
    assert with_ids.text.startswith("id: 3\ndata: ")
    for asked in ({}, {"x-qlm-stream": "plain"}, headers | {"x-qlm-stream": "plain"}):
        without = await http.post(f"{url}/v1/completions", json=body, headers=asked)
        blocks = without.text.strip().split("\n\n")
        assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    odd = await http.post(f"{url}/v1/completions", json=body, headers={"x-qlm-stream": "odd"})
    assert refusal(odd)["param"] == "x-qlm-stream"


# --- clients that leave


async def abandoned(
    http: httpx.AsyncClient, cluster: Cluster, url: str, body: dict[str, Any], **headers: str
) -> RequestId:
    """Start a stream, read its first tokens, leave."""
    cluster.agent.pause_at = 3
    asked = body | {"stream": True}
    async with http.stream("POST", f"{url}/v1/completions", json=asked, headers=headers) as response:
        await Events(response).text(until_text=ANSWER[:3])
        return RequestId(response.headers["x-request-id"])


async def test_an_abandoned_stream_is_cancelled_after_its_grace(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    id = await abandoned(http, cluster, url, COMPLETION | {"resume_grace_s": 0.1})
    await until(lambda: cluster.agent.ended.get(id) is Outcome.CANCELLED)


async def test_an_abandoned_stream_lives_on_within_its_grace(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    for headers in (RESUMABLE, {"idempotency-key": "k"}):
        id = await abandoned(http, cluster, url, COMPLETION, **headers)
        cluster.agent.go.set()
        await until(partial(ended_as, cluster, id, Outcome.STOP))
        cluster.agent.go.clear()


def ended_as(cluster: Cluster, id: RequestId, outcome: Outcome) -> bool:
    return cluster.agent.ended.get(id) is outcome


@pytest.mark.parametrize("headers", [{}, {"x-qlm-stream": "plain"}])
async def test_a_stream_that_cannot_be_resumed_ends_with_its_client(
    cluster: Cluster, url: str, http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    id = await abandoned(http, cluster, url, COMPLETION, **headers)
    await until(lambda: ended_as(cluster, id, Outcome.CANCELLED), timeout_s=2)


async def watchers_are(cluster: Cluster, id: RequestId, count: int) -> bool:
    return await cluster.store.unwatch(id, GatewayId("stranger")) == count


async def test_a_stream_that_came_back_elsewhere_is_not_cancelled(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    first, second = await cluster.gateway(), await cluster.gateway()
    id = await abandoned(http, cluster, first, COMPLETION | {"resume_grace_s": 0.1})
    async with http.stream("GET", f"{second}/v1/requests/{id}/events?offset=3") as response:
        await until(lambda: watchers_are(cluster, id, 1))
        cluster.agent.go.set()
        assert await Events(response).text() == ANSWER[3:]
    assert cluster.agent.ended[id] is Outcome.STOP


async def test_an_abandoned_plain_request_is_cancelled_at_once(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.pause_at = 3
    waiting = asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION))
    await until(lambda: cluster.agent.leased)
    waiting.cancel()
    await until(lambda: list(cluster.agent.ended.values()) == [Outcome.CANCELLED])


async def test_a_queued_request_whose_client_left_never_runs(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.working.clear()
    waiting = asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION))
    await until(lambda: cluster.store.records(QUEUED))
    waiting.cancel()
    await until(lambda: cluster.store.records(ENDED))
    cluster.agent.working.set()
    assert (await http.post(f"{url}/v1/completions", json=COMPLETION)).status_code == 200
    assert len(cluster.agent.leased) == 1


async def test_the_retry_of_an_sdk_takes_up_the_request_that_ran_into_its_timeout(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.pause_at = 3
    asked = {**COMPLETION, "timeout": 1.0}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=2) as client:
        waiting = [asyncio.create_task(client.completions.create(**asked, user=name)) for name in "ab"]
        # Each has a session that its client has left, and one of its retry.
        await until(lambda: open_requests(http, cluster.admin_urls[url], 4))
        cluster.agent.go.set()
        answers = [await each for each in waiting]
    assert [answer.choices[0].text for answer in answers] == [ANSWER, ANSWER]
    ids = {request.tenant: f"cmpl-{request.id}" for request in cluster.agent.leased}
    assert [answer.id for answer in answers] == [ids["a"], ids["b"]]
    assert len(cluster.agent.leased) == 2


async def test_an_sdk_that_leaves_before_its_timeout_has_left(cluster: Cluster, url: str) -> None:
    cluster.agent.pause_at = 3
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=2) as client:
        waiting = asyncio.create_task(client.completions.create(**COMPLETION))
        await until(lambda: cluster.agent.leased)
        waiting.cancel()
        await until(lambda: list(cluster.agent.ended.values()) == [Outcome.CANCELLED], timeout_s=2)


# --- stop strings


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_answer_and_generation(
    client: openai.AsyncOpenAI, cluster: Cluster, stream: bool
) -> None:
    cluster.agent.answer = lambda request: b"one two three " * 20
    cluster.agent.pause_at = 60
    made = await client.completions.create(**COMPLETION, stop=[" three"], stream=stream, max_tokens=300)
    if isinstance(made, openai.AsyncStream):
        choices = [chunk.choices[0] async for chunk in made]
        text, reason = "".join(choice.text for choice in choices), choices[-1].finish_reason
    else:
        text, reason = made.choices[0].text, made.choices[0].finish_reason
        assert made.usage is not None
        assert made.usage.completion_tokens == 13
    assert (text, reason) == ("one two", "stop")
    await until(lambda: list(cluster.agent.ended.values()) == [Outcome.STOP])


# --- asynchronous requests


async def test_an_asynchronous_request_is_answered_later(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.pause_at = 0
    made = await http.post(f"{url}/v1/chat/completions", json=CHAT, headers={"prefer": "respond-async"})
    assert (made.status_code, made.headers["preference-applied"]) == (202, "respond-async")
    status = await http.get(url + made.headers["location"])
    assert status.json()["status"] in ("queued", "running")
    cluster.agent.go.set()
    await until(lambda: cluster.agent.ended)
    done = (await http.get(url + made.headers["location"])).json()
    assert (done["status"], done["outcome"]) == ("ended", "stop")
    assert done["response"]["choices"][0]["message"]["content"] == ANSWER
    assert done["response"]["object"] == "chat.completion"


async def test_an_asynchronous_request_is_stopped_at_its_stop_string(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.answer = lambda request: b"one two three " * 20
    cluster.agent.pause_at = 60
    body = COMPLETION | {"stop": " three", "max_tokens": 300}
    made = await http.post(f"{url}/v1/completions", json=body, headers={"prefer": "respond-async"})
    await until(lambda: list(cluster.agent.ended.values()) == [Outcome.STOP])
    done = (await http.get(url + made.headers["location"])).json()
    assert done["response"]["choices"][0] == {
        "index": 0,
        "text": "one two",
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": " three",
    }


async def open_requests(http: httpx.AsyncClient, admin_url: str, count: int) -> bool:
    return f"qlm_gateway_open_requests {count:.1f}\n" in (await http.get(f"{admin_url}/metrics")).text


async def test_reading_an_asynchronous_request_does_not_bind_it_to_the_reader(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    url = await cluster.gateway(limits=GatewayLimits(resume_grace_stream_s=0))
    cluster.agent.pause_at = 3
    made = await http.post(f"{url}/v1/completions", json=COMPLETION, headers={"prefer": "respond-async"})
    id = RequestId(made.json()["id"])
    async with http.stream("GET", f"{url}/v1/requests/{id}/events") as response:
        await Events(response).text(until_tokens=3)
    await until(lambda: open_requests(http, cluster.admin_urls[url], 0))
    cluster.agent.go.set()
    await until(lambda: cluster.agent.ended.get(id) is Outcome.STOP)


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


# --- idempotency


async def test_a_retry_with_its_key_gets_the_same_answer_on_any_gateway(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    first, second = await cluster.gateway(), await cluster.gateway()
    headers = {"idempotency-key": "order-66"}
    one, two = [
        await http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers) for url in (first, second)
    ]
    assert one.json() == two.json()
    assert one.json()["choices"][0]["text"] == ANSWER
    assert len(cluster.agent.leased) == 1


async def test_a_retry_may_join_while_the_first_try_runs(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.pause_at = 3
    headers = {"idempotency-key": "k"}
    tries = [asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers))]
    await until(lambda: cluster.agent.leased)
    tries.append(asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers)))
    tries[0].cancel()
    cluster.agent.go.set()
    assert (await tries[1]).json()["choices"][0]["text"] == ANSWER
    assert len(cluster.agent.leased) == 1


async def test_two_tries_at_once_are_queued_once(cluster: Cluster, url: str, http: httpx.AsyncClient) -> None:
    cluster.agent.working.clear()
    headers = {"idempotency-key": "k"}
    tries = [
        asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers))
        for _ in range(4)
    ]
    await until(lambda: open_requests(http, cluster.admin_urls[url], 4))
    await until(cluster.broker.queues)
    (queue,) = await cluster.broker.queues()
    await until(lambda: cluster.broker.depth(queue))
    assert await cluster.broker.depth(queue) == 1
    cluster.agent.working.set()
    assert [(await each).json()["choices"][0]["text"] for each in tries] == [ANSWER] * 4


async def test_a_key_with_another_body_is_refused_and_another_tenant_may_use_it(
    url: str, http: httpx.AsyncClient
) -> None:
    headers = {"idempotency-key": "k"}
    await http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers)
    other = COMPLETION | {"prompt": "Ho"}
    refused = await http.post(f"{url}/v1/completions", json=other, headers=headers)
    assert (refused.status_code, refusal(refused)["code"]) == (422, "idempotency_key_reused")
    assert (
        await http.post(f"{url}/v1/completions", json=other | {"user": "b"}, headers=headers)
    ).status_code == 200


async def test_a_key_whose_request_was_lost_is_tried_anew(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    headers = {"idempotency-key": "k"}
    cluster.agent.fail_with = (Outcome.ENGINE_LOST, "")
    assert (await http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers)).status_code == 503
    cluster.agent.fail_with = None
    assert (await http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers)).status_code == 200


# --- ends


@pytest.mark.parametrize(
    ("outcome", "detail", "posted", "retry"),
    [
        (Outcome.EXPIRED, "", 504, "false"),
        (Outcome.CANCELLED, "", 499, "false"),
        (Outcome.ENGINE_LOST, "", 503, "true"),
        (Outcome.OUTPUT_LOST, "", 503, "true"),
        (Outcome.FAILED, "broken", 500, "false"),
        (Outcome.REFUSED, "too long", 400, "false"),
    ],
)
async def test_each_bad_end_has_its_status(
    cluster: Cluster,
    url: str,
    http: httpx.AsyncClient,
    outcome: Outcome,
    detail: str,
    posted: int,
    retry: str,
) -> None:
    cluster.agent.fail_with = (outcome, detail)
    answer = await http.post(f"{url}/v1/completions", json=COMPLETION)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (posted, retry)
    assert refusal(answer)["code"] == outcome
    status = await http.get(f"{url}/v1/requests/{answer.headers['x-request-id']}")
    assert (status.status_code, status.json()["outcome"]) == (200, outcome)
    assert status.json()["error"]["code"] == outcome


async def test_delete_cancels_a_running_request(cluster: Cluster, url: str, http: httpx.AsyncClient) -> None:
    cluster.agent.pause_at = 3
    waiting = asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION))
    await until(lambda: cluster.agent.leased)
    id = cluster.agent.leased[0].id
    deleted = await http.delete(f"{url}/v1/requests/{id}")
    assert (deleted.status_code, deleted.json()["cancel_requested"]) == (200, True)
    assert (await waiting).status_code == 499


async def said_of(http: httpx.AsyncClient, url: str, id: str) -> str:
    """Wait until a request has ended, and return what its error says."""
    await until(lambda: ended(http, url, id))
    status = (await http.get(f"{url}/v1/requests/{id}")).json()
    return str(status["error"]["message"])


async def ended(http: httpx.AsyncClient, url: str, id: str) -> bool:
    return bool((await http.get(f"{url}/v1/requests/{id}")).json()["status"] == "ended")


@pytest.mark.parametrize("waits", [False, True])
async def test_a_cancelled_request_says_who_ended_it(
    cluster: Cluster, url: str, admin_url: str, http: httpx.AsyncClient, waits: bool
) -> None:
    cluster.agent.pause_at = 3
    if waits:
        await cluster.agent.rest()
    headers = {"prefer": "respond-async"}
    ids = [
        (await http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers)).json()["id"]
        for _ in range(2)
    ]
    if not waits:
        await until(lambda: len(cluster.agent.leased) == 2)
    await http.delete(f"{url}/v1/requests/{ids[0]}")
    await http.delete(f"{admin_url}/admin/v1/requests/{ids[1]}")
    asked = [await said_of(http, url, id) for id in ids]
    assert asked[0] == "the request was cancelled: its client asked for that"
    assert asked[1] == "the request was cancelled: an operator asked for that"


async def test_an_abandoned_request_says_that_its_client_disconnected(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    stream = await abandoned(http, cluster, url, COMPLETION | {"resume_grace_s": 0.1})
    assert await said_of(http, url, stream) == (
        "the request was cancelled: its client disconnected, and no client resumed it within 0.1 s"
    )


async def test_an_expired_request_says_it_once(cluster: Cluster, url: str, http: httpx.AsyncClient) -> None:
    await cluster.agent.rest()
    body = COMPLETION | {"slo": {"deadline_ms": 1, "on_miss": "drop"}}
    waiting = asyncio.create_task(http.post(f"{url}/v1/completions", json=body))
    await until(lambda: cluster.store.expire(SystemClock().now_ns()))
    answer = await waiting
    assert answer.status_code == 504
    assert refusal(answer)["message"] == "the request's deadline passed before it was answered"
    assert answer.headers["x-qlm-met"] == "false"
    assert "x-qlm-late-ms" not in answer.headers


@pytest.mark.parametrize(("path", "body"), [("completions", COMPLETION), ("chat/completions", CHAT)])
async def test_the_id_of_an_answer_object_is_taken_wherever_a_request_is_named(
    url: str, admin_url: str, http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    answer = await http.post(f"{url}/v1/{path}", json=body)
    id, own = answer.json()["id"], answer.headers["x-request-id"]
    assert id != own
    named = [f"{url}/v1/requests/{id}", f"{admin_url}/admin/v1/requests/{id}"]
    for each in named:
        assert (await http.get(each)).json()["id"] == own
        assert (await http.delete(each)).json()["id"] == own
    stream = await http.get(f"{url}/v1/requests/{id}/events")
    assert stream.headers["x-request-id"] == own


async def test_an_unknown_request_is_404(url: str, http: httpx.AsyncClient) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/events")):
        answer = await http.request(method, f"{url}/v1/requests/nope{path}")
        assert (answer.status_code, refusal(answer)["code"]) == (404, "request_not_found")


# --- when parts fail


class BrokenBroker:
    """Refuses, or never confirms, what is published; else as the broker it stands before."""

    def __init__(self, broker: Broker, *, confirm: bool | None) -> None:
        """Confirm nothing and say so (False), or store it but never confirm (None)."""
        self._broker = broker
        self._confirm = confirm

    async def publish(self, queue: QueueName, body: bytes) -> None:
        if self._confirm is False:
            raise BrokerUnavailableError("connection refused")
        await self._broker.publish(queue, body)
        await asyncio.Event().wait()

    async def depth(self, queue: QueueName) -> int:
        raise BrokerUnavailableError("connection refused")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


class HeldBroker:
    """Publishes when told to; else as the broker it stands before."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def publish(self, queue: QueueName, body: bytes) -> None:
        self.asked.set()
        await self.may.wait()
        await self._broker.publish(queue, body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


async def test_a_try_is_not_accepted_if_its_twin_was_withdrawn_before_it_was_confirmed(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    slow_broker: Any = HeldBroker(cluster.broker)
    broken: Any = BrokenBroker(cluster.broker, confirm=False)
    slow, bad, good = [await cluster.gateway(broker=each) for each in (slow_broker, broken, cluster.broker)]
    headers = {"idempotency-key": "k"}

    def ask(url: str) -> Any:
        return http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers, timeout=10)

    first = asyncio.create_task(ask(slow))
    await slow_broker.asked.wait()
    assert (await ask(bad)).status_code == 503
    slow_broker.may.set()
    assert (await first).status_code == 503
    assert (await ask(good)).json()["choices"][0]["text"] == ANSWER


async def test_without_a_broker_nothing_is_accepted(cluster: Cluster, http: httpx.AsyncClient) -> None:
    broken: Any = BrokenBroker(cluster.broker, confirm=False)
    url = await cluster.gateway(broker=broken)
    for body in (COMPLETION, COMPLETION | {"stream": True}):
        answer = await http.post(f"{url}/v1/completions", json=body)
        assert (answer.status_code, refusal(answer)["code"]) == (503, "broker_unavailable")
        assert answer.headers["retry-after"] == "1"
    for path, status in (("readyz", 503), ("health", 503), ("healthz", 200)):
        assert (await http.get(f"{url}/{path}")).status_code == status
    assert "qlm_gateway_open_requests 0.0" in (await http.get(f"{cluster.admin_urls[url]}/metrics")).text


async def test_a_message_stored_but_never_confirmed_does_not_run(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    cluster.agent.working.clear()
    broken: Any = BrokenBroker(cluster.broker, confirm=None)
    url = await cluster.gateway(broker=broken, limits=GatewayLimits(publish_timeout_s=0.1))
    answer = await http.post(f"{url}/v1/completions", json=COMPLETION)
    assert answer.status_code == 503
    good = await cluster.gateway()
    cluster.agent.working.set()
    assert (await http.post(f"{good}/v1/completions", json=COMPLETION | {"user": "good"})).status_code == 200
    assert [request.tenant for request in cluster.agent.leased] == ["good"]


async def test_a_try_that_was_not_confirmed_leaves_alone_what_another_one_with_its_key_brought(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    cluster.agent.working.clear()
    broken: Any = BrokenBroker(cluster.broker, confirm=None)
    url = await cluster.gateway(broker=broken, limits=GatewayLimits(publish_timeout_s=0.5))
    good = await cluster.gateway()
    headers = {"Idempotency-Key": "twice"}
    first = asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers))
    second = asyncio.create_task(http.post(f"{good}/v1/completions", json=COMPLETION, headers=headers))
    await until(lambda: cluster.store.records(QUEUED))
    assert (await first).status_code == 503
    cluster.agent.working.set()
    assert (await second).status_code == 200


class HungStore(MemoryStore):
    """Does not answer when it is asked to cancel, as a store may that is overloaded."""

    async def cancel(
        self, id: RequestId, outcome: Outcome = Outcome.CANCELLED, why: str = ""
    ) -> RequestRecord | None:
        await asyncio.Event().wait()
        return None


async def test_what_was_not_confirmed_never_waits_in_the_store_without_a_message(
    tmp_path: Path, http: httpx.AsyncClient
) -> None:
    """A retry with its key would wait with it, for ever."""
    headers = {"Idempotency-Key": "again"}
    async with running_cluster(tmp_path, HungStore(SystemClock())) as running:
        broken: Any = BrokenBroker(running.broker, confirm=False)
        url = await running.gateway(broker=broken, limits=GatewayLimits(publish_timeout_s=0.1))
        answer = await http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers)
        assert answer.status_code == 503
        assert not await running.store.records(QUEUED)
        good = await running.gateway()
        answer = await http.post(f"{good}/v1/completions", json=COMPLETION, headers=headers)
        assert answer.status_code == 200


class EmptiedStore(MemoryStore):
    """Still tells of a request, and is emptied before it is asked for its output."""

    emptied = False

    async def read_output(self, id: RequestId, offset: int) -> OutputSlice | None:
        return None if self.emptied else await super().read_output(id, offset)

    async def incarnation(self) -> int:
        return await super().incarnation() + self.emptied


async def test_a_store_emptied_while_a_request_is_looked_up_is_said_to_be_rebuilt(
    tmp_path: Path, http: httpx.AsyncClient
) -> None:
    store = EmptiedStore(SystemClock())
    async with running_cluster(tmp_path, store) as running:
        url = await running.gateway()
        answer = await http.post(f"{url}/v1/completions", json=COMPLETION)
        id = answer.headers["x-request-id"]
        assert (await http.get(f"{url}/v1/requests/{id}")).status_code == 200
        store.emptied = True
        answer = await http.get(f"{url}/v1/requests/{id}")
        assert (answer.status_code, refusal(answer)["code"]) == (503, "state_rebuilding")


async def test_an_unknown_request_may_wait_until_the_queue_was_read_into_the_store(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    """The gateway has seen nothing itself: it began after the store was emptied."""
    cluster.store = MemoryStore(SystemClock())
    url = await cluster.gateway()
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/events")):
        answer = await http.request(method, f"{url}/v1/requests/waits{path}")
        assert (answer.status_code, refusal(answer)["code"]) == (503, "state_rebuilding")
        assert answer.headers["retry-after"] == "1"
    await mark_indexed(cluster.store)
    answer = await http.get(f"{url}/v1/requests/waits")
    assert (answer.status_code, refusal(answer)["code"]) == (404, "request_not_found")


class ForgetfulStore(MemoryStore):
    """Fails to index, or announces nothing, as a store may that is going."""

    enqueues_to_fail = 0
    deaf = False

    async def enqueue(
        self, metadata: RequestMetadata, watcher: GatewayId | None = None, incarnation: int | None = None
    ) -> Enqueued:
        if self.enqueues_to_fail:
            self.enqueues_to_fail -= 1
            raise StoreUnavailableError("connection reset")
        return await super().enqueue(metadata, watcher, incarnation)

    def outputs(self, watcher: GatewayId) -> AsyncIterator[Sequence[OutputSlice]]:
        return self._silence() if self.deaf else super().outputs(watcher)

    async def _silence(self) -> AsyncIterator[Sequence[OutputSlice]]:
        await asyncio.Event().wait()
        yield ()


@pytest.fixture
async def forgetful(tmp_path: Path) -> AsyncIterator[tuple[Cluster, ForgetfulStore]]:
    store = ForgetfulStore(SystemClock())
    async with running_cluster(tmp_path, store) as running:
        yield running, store


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_queue_has_is_answered_though_the_store_failed_once(
    forgetful: tuple[Cluster, ForgetfulStore], http: httpx.AsyncClient, stream: bool
) -> None:
    cluster, store = forgetful
    store.enqueues_to_fail = 1
    url = await cluster.gateway(limits=GatewayLimits(poll_s=0.1))
    answer = await http.post(f"{url}/v1/completions", json=COMPLETION | {"stream": stream})
    assert answer.status_code == 200
    assert '"finish_reason":"stop"' in answer.text


async def test_what_the_store_failed_to_index_is_indexed_later(
    forgetful: tuple[Cluster, ForgetfulStore], http: httpx.AsyncClient
) -> None:
    cluster, store = forgetful
    store.enqueues_to_fail = 1
    cluster.agent.working.clear()
    url = await cluster.gateway(limits=GatewayLimits(poll_s=0.1))
    waiting = asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION))
    await until(lambda: store.records(QUEUED))
    cluster.agent.working.set()
    assert (await waiting).status_code == 200


async def test_without_announcements_output_is_looked_up(
    forgetful: tuple[Cluster, ForgetfulStore], http: httpx.AsyncClient
) -> None:
    cluster, store = forgetful
    store.deaf = True
    url = await cluster.gateway(limits=GatewayLimits(poll_s=0.05, poll_max_s=0.1))
    cluster.agent.pause_at = 6
    async with http.stream("POST", f"{url}/v1/completions", json=COMPLETION | {"stream": True}) as response:
        events = Events(response)
        assert await events.text(until_text=ANSWER[:6]) == ANSWER[:6]
        cluster.agent.go.set()
        assert await events.text() == ANSWER[6:]


# --- bad input


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b'{"model": "emulated", "prompt": "' + b"x" * 2000 + b'"}', 413, "body_too_large"),
        (b'{"model": "emulated"}', 400, "missing_required_parameter"),
        (b'{"model": "emulated", "prompt": "a", "slo": {"deadline_ms": -1}}', 400, "invalid_value"),
        (b'{"model": "emulated", "prompt": "a", "n": 3}', 400, "unsupported_value"),
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


async def test_unknown_paths_and_methods_get_openais_error_shape(url: str, http: httpx.AsyncClient) -> None:
    assert refusal(await http.get(f"{url}/v2/x"))["code"] == "not_found"
    answer = await http.get(f"{url}/v1/completions")
    assert (answer.status_code, refusal(answer)["code"]) == (405, "method_not_allowed")
    several = await http.put(f"{url}/v1/requests/r")
    assert (several.status_code, several.headers["allow"]) == (405, "DELETE, GET, HEAD")


# --- objectives


async def test_headers_tier_and_priority_reach_the_queue(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    headers = {"x-slo-ttft-ms": "400", "x-gateway-inference-fairness-id": "team-a"}
    made = await http.post(f"{url}/v1/completions", json=COMPLETION | {"priority": -2}, headers=headers)
    request = cluster.agent.leased[0]
    assert (request.tenant, request.cls.priority, request.cls.slo) == ("team-a", -2, "ttft-400ms")
    assert made.json()["service_tier"] == "default"
    flex = await http.post(f"{url}/v1/completions", json=COMPLETION | {"service_tier": "flex"})
    assert flex.json()["service_tier"] == "flex"
    assert cluster.agent.leased[1].cls.slo == "batch"


async def test_a_header_asks_for_a_pace(cluster: Cluster, url: str, http: httpx.AsyncClient) -> None:
    paced = await http.post(f"{url}/v1/completions", json=COMPLETION, headers={"x-slo-tokens-per-s": "5"})
    assert paced.status_code == 200
    assert cluster.agent.leased[0].cls.slo == "ttft-1s-speed-5"
    headers = {"x-slo-tokens-per-s": "fast"}
    refused = await http.post(f"{url}/v1/completions", json=COMPLETION, headers=headers)
    assert refused.status_code == 400
    assert "x-slo-tokens-per-s" in refused.json()["error"]["message"]


async def test_a_pace_and_a_deadline_beside_it_reach_the_queue_and_both_count(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    await cluster.agent.working.wait()
    cluster.agent.pause_at = 3
    body = COMPLETION | {"slo": {"reader": "reading", "ttft_ms": 4000, "deadline_ms": 4000.5}}
    waiting = asyncio.create_task(http.post(f"{url}/v1/completions", json=body))
    await until(lambda: cluster.agent.leased)
    (leased,) = cluster.agent.leased
    assert leased.slo == ReadingSlo(ttft_ms=4000, tokens_per_s=4.8)
    assert leased.extensions.deadline_ms == 4000.5
    sent = call_objective(leased, shown=0)
    assert (sent.tokens_per_s, sent.deadline_ns) == (4.8, leased.arrival_ns + 4_000_500_000)
    cluster.agent.go.set()
    answer = await waiting
    assert answer.headers["x-qlm-met"] == "true"
    status = (await http.get(f"{url}/v1/requests/{leased.id}")).json()
    assert status["slo"] == {
        "kind": "reading",
        "ttft_ms": 4000,
        "tokens_per_s": 4.8,
        "deadline_ms": 4000.5,
        "on_miss": "serve",
    }


async def test_a_long_prompt_is_tokenized_beside_the_event_loop(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    url = await cluster.gateway(limits=GatewayLimits(encode_inline_chars=10))
    for path, body in (
        ("completions", COMPLETION | {"prompt": "y" * 100}),
        ("chat/completions", CHAT | {"messages": [{"role": "user", "content": "y" * 100}]}),
    ):
        assert (await http.post(f"{url}/v1/{path}", json=body)).status_code == 200
    assert [bytes(request.prompt_ids).count(b"y") for request in cluster.agent.leased] == [100, 100]


# --- service routes


async def test_metrics_count_requests_by_outcome_and_objective(
    url: str, admin_url: str, http: httpx.AsyncClient
) -> None:
    await http.post(f"{url}/v1/completions", json=COMPLETION)
    metrics = (await http.get(f"{admin_url}/metrics")).text
    for line in (
        'qlm_gateway_requests_total{model="emulated",outcome="stop",slo_class="deadline-60s"} 1.0',
        'qlm_gateway_request_slo_attained_total{model="emulated",slo_class="deadline-60s"} 1.0',
        'qlm_gateway_time_to_first_token_seconds_count{model="emulated",slo_class="deadline-60s"} 1.0',
        'qlm_gateway_e2e_request_latency_seconds_count{model="emulated",slo_class="deadline-60s"} 1.0',
        'qlm_gateway_accept_seconds_count{model="emulated"} 1.0',
        "qlm_gateway_open_streams 0.0",
        "qlm_gateway_open_requests 0.0",
    ):
        assert line in metrics


async def test_readiness_asks_broker_and_store(url: str, http: httpx.AsyncClient) -> None:
    ready = await http.get(f"{url}/readyz")
    assert (ready.status_code, ready.json()["broker"], ready.json()["store"]) == (200, "ok", "ok")


async def test_operators_see_queues_requests_and_instances(
    cluster: Cluster, url: str, admin_url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.working.clear()
    waiting = asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION))
    await until(lambda: cluster.store.records(QUEUED))
    (queue,) = (await http.get(f"{admin_url}/admin/v1/queues")).json()["classes"]
    assert (queue["queue"], queue["queued"]) == ("qlm.class.emulated.deadline-60s.all", 1)
    (request,) = (await http.get(f"{admin_url}/admin/v1/requests?state=queued&limit=5")).json()["requests"]
    assert [event["what"] for event in request["events"]] == ["accepted"]
    assert (await http.get(f"{admin_url}/admin/v1/requests/{request['id']}")).json()["id"] == request["id"]
    assert (await http.get(f"{admin_url}/admin/v1/groups")).json() == {"groups": []}
    (instance,) = (await http.get(f"{admin_url}/admin/v1/instances")).json()["instances"]
    assert (instance["id"], instance["models"]) == ("gpu-0", ["emulated", "small"])
    assert refusal(await http.get(f"{admin_url}/admin/v1/requests?state=odd"))["param"] == "state"
    for query in (f"limit={'9' * 5000}", f"state={'x' * 5000}"):
        refused = await http.get(f"{admin_url}/admin/v1/requests?{query}")
        assert refused.status_code == 400 and len(refusal(refused)["message"]) < 400
    cluster.agent.working.set()
    await waiting


async def test_operators_see_where_a_request_waits(
    cluster: Cluster, url: str, admin_url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.working.clear()
    waiting = [asyncio.create_task(http.post(f"{url}/v1/completions", json=COMPLETION)) for _ in range(3)]
    await until(lambda: _queued(cluster, 3))
    newest, middle, oldest = await cluster.store.records(QUEUED)

    async def waits(id: RequestId) -> Any:
        return (await http.get(f"{admin_url}/admin/v1/requests/{id}")).json()["waits"]

    assert await waits(middle.metadata.id) == {
        "position": 2,
        "queued": 3,
        "group": None,
        "group_position": None,
        "group_requests": None,
        "instance": None,
    }
    group = GroupId("g")
    await cluster.store.apply(
        [
            CreateGroup(id=GroupId("first"), cls=oldest.metadata.cls, count=1),
            CreateGroup(id=group, cls=oldest.metadata.cls, count=2),
            SetQueue(instance=InstanceId("gpu-0"), groups=(group,)),
        ]
    )
    assert await waits(newest.metadata.id) == {
        "position": 3,
        "queued": 3,
        "group": "g",
        "group_position": 2,
        "group_requests": 2,
        "instance": "gpu-0",
    }
    assert (await waits(oldest.metadata.id))["instance"] is None
    cluster.agent.working.set()
    await asyncio.gather(*waiting)
    assert await waits(newest.metadata.id) is None


async def _queued(cluster: Cluster, number: int) -> bool:
    return len(await cluster.store.records(QUEUED)) == number


async def test_operators_see_the_plan_as_it_was_kept(
    cluster: Cluster, admin_url: str, http: httpx.AsyncClient
) -> None:
    none = await http.get(f"{admin_url}/admin/v1/plan")
    assert (none.status_code, refusal(none)["code"]) == (404, "plan_not_found")
    assert refusal(none)["message"].startswith("there is no plan yet")
    await cluster.store.publish(PublishedKind.PLAN, b'{"version": 1, "at_ms": 5}')
    there = await http.get(f"{admin_url}/admin/v1/plan")
    assert (there.status_code, there.content) == (200, b'{"version": 1, "at_ms": 5}')
    assert there.headers["content-type"] == "application/json"
    cluster.undescribed.clear()  # this is no plan, only bytes


async def test_operators_see_the_forecast_as_it_was_kept(
    cluster: Cluster, admin_url: str, http: httpx.AsyncClient
) -> None:
    none = await http.get(f"{admin_url}/admin/v1/forecast")
    assert (none.status_code, refusal(none)["code"]) == (404, "forecast_not_found")
    await cluster.store.publish(PublishedKind.SIGNAL, b'{"version": 1}')
    there = await http.get(f"{admin_url}/admin/v1/forecast")
    assert (there.status_code, there.content) == (200, b'{"version": 1}')
    assert there.headers["content-type"] == "application/json"
    cluster.undescribed.clear()  # this is no forecast, only bytes


async def test_operators_see_the_clusters_that_the_gateway_uses(
    cluster: Cluster, admin_url: str, http: httpx.AsyncClient
) -> None:
    url = f"{admin_url}/admin/v1/clusters"
    assert (await http.get(url)).json() == {"clusters": []}
    chat = RequestClass(ModelId("m"), "deadline-60s", target_ms=60_000.0)
    clusters = Clusters(fixed={ModelId("n"): (100, 8000)}, found={chat: (4096,)})
    await cluster.store.publish(PublishedKind.CLUSTERS, CLUSTERS.encode(clusters))

    async def read() -> bool:
        return bool((await http.get(url)).json()["clusters"])

    await until(read)
    assert (await http.get(url)).json() == {
        "clusters": [
            {
                "model": "n",
                "slo_class": None,
                "priority": None,
                "thresholds": [100, 8000],
                "clusters": ["to-100", "101-8000", "over-8000"],
            },
            {
                "model": "m",
                "slo_class": "deadline-60s",
                "priority": 0,
                "thresholds": [4096],
                "clusters": ["to-4096", "over-4096"],
            },
        ]
    }


async def test_operators_see_the_history_as_it_was_kept(
    cluster: Cluster, admin_url: str, http: httpx.AsyncClient
) -> None:
    none = await http.get(f"{admin_url}/admin/v1/history")
    assert (none.status_code, refusal(none)["code"]) == (404, "history_not_found")
    kept = orjson.dumps(history_to_plain(History(at_ns=5)))
    await cluster.store.publish(PublishedKind.HISTORY, kept)
    there = await http.get(f"{admin_url}/admin/v1/history")
    assert (there.status_code, there.content) == (200, kept)


async def test_operators_see_which_controller_leads_since_when(
    cluster: Cluster, admin_url: str, http: httpx.AsyncClient
) -> None:
    none = await http.get(f"{admin_url}/admin/v1/controller")
    assert (none.status_code, none.json()) == (200, {"leader": None})
    led = await cluster.store.acquire_leadership(ControllerId("host-1a2b3c"), 60.0)
    there = await http.get(f"{admin_url}/admin/v1/controller")
    assert there.json() == {
        "leader": {
            "id": "host-1a2b3c",
            "since_s": led.since_ns / 1e9,
            "incarnation": await cluster.store.incarnation(),
            "term": led.term.n,
        }
    }


async def test_operators_drain_live_instances(admin_url: str, http: httpx.AsyncClient) -> None:
    assert (await http.post(f"{admin_url}/admin/v1/instances/gpu-0/drain")).status_code == 202
    gone = await http.post(f"{admin_url}/admin/v1/instances/gpu-9/drain")
    assert (gone.status_code, refusal(gone)["code"]) == (404, "instance_not_found")


# --- many at once


async def test_many_clients_get_each_their_own_answer(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.answer = lambda request: text_then_end(f"echo {bytes(request.prompt_ids).decode()}")

    async def ask(number: int) -> str:
        body = COMPLETION | {"prompt": f"n{number}", "stream": number % 2 == 0}
        answer = await http.post(f"{url}/v1/completions", json=body)
        if number % 2:
            return str(answer.json()["choices"][0]["text"])
        data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        return "".join(orjson.loads(each)["choices"][0]["text"] for each in data)

    assert await asyncio.gather(*map(ask, range(200))) == [f"echo n{number}" for number in range(200)]


async def test_messages_in_the_queue_are_whole_requests(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    cluster.agent.working.clear()
    made = await http.post(f"{url}/v1/completions", json=COMPLETION, headers={"prefer": "respond-async"})
    (queue,) = await cluster.broker.queues()
    (delivery,) = await cluster.broker.get(queue)
    request = decode_request(delivery.body)
    assert (request.id, request.prompt_ids, request.detached) == (made.json()["id"], tuple(b"Hi"), True)
    record = await cluster.store.record(request.id)
    assert record is not None
    assert record.metadata == request.metadata()
    await cluster.broker.requeue(delivery)


async def test_a_failure_of_the_gateway_is_found_in_its_log_by_what_the_client_heard(
    url: str,
    http: httpx.AsyncClient,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(id: RequestId) -> None:
        raise ZeroDivisionError(id)

    monkeypatch.setattr(cluster.store, "record", broken)
    answer = await http.get(f"{url}/v1/requests/r")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    named = [getattr(each, "request_id", "") for each in caplog.records]
    assert answer.headers["x-request-id"] in named

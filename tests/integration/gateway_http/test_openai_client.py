"""OpenAI's unmodified client at a gateway: answers, streams, errors, stop strings, many at once."""

import asyncio
import time
from typing import Any

import httpx
import openai
import orjson
import pytest

from qlm.broker.codec import decode_request
from qlm.domain.byte_tokens import EOS_ID
from qlm.domain.outcome import Outcome
from qlm.gateway.core.limits import GatewayLimits
from support.gateway import MODELS, Cluster, text_then_end, until
from support.http_calls import ANSWER, CHAT, COMPLETION, QUEUED, refusal


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


async def test_a_user_may_be_as_long_as_a_client_likes(client: openai.AsyncOpenAI, cluster: Cluster) -> None:
    user = "user_" + "0123456789abcdef" * 12
    await client.chat.completions.create(**CHAT, user=user)
    await client.completions.create(**COMPLETION, user=user)
    response = await client.responses.create(model="emulated", input="Hi", user=user)
    assert response.user == user
    tenants = {request.tenant for request in cluster.agent.leased}
    assert len(cluster.agent.leased) == 3 and len(tenants) == 1 and len(tenants.pop()) <= 100


async def test_an_output_limit_beyond_the_room_is_cut_to_it(
    client: openai.AsyncOpenAI, cluster: Cluster
) -> None:
    cluster.agent.answer = lambda request: b"x" * request.sampling.max_tokens
    asked: dict[str, Any] = {"model": "small"}
    chat = await client.chat.completions.create(
        **asked, messages=[{"role": "user", "content": "Hi"}], max_completion_tokens=64
    )
    plain = await client.completions.create(**asked, prompt="Hi", max_tokens=64)
    response = await client.responses.create(**asked, input="Hi", max_output_tokens=64)
    usages = [each.usage for each in (chat, plain, response)]
    assert [each and each.total_tokens for each in usages] == [64, 64, 64]
    assert (chat.choices[0].finish_reason, plain.choices[0].finish_reason) == ("length", "length")
    assert response.incomplete_details and response.incomplete_details.reason == "max_output_tokens"


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

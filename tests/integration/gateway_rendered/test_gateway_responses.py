"""OpenAI's Responses API over real HTTP: its unmodified client, an emulated render tier and engine."""

import json
import random
from typing import Any, Final

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.render.rendering import RenderTiers
from support.gateway import Cluster, until

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "Weather of a town",
    "parameters": {
        "type": "object",
        "properties": {"town": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
        "required": ["town", "days"],
    },
    "strict": None,
}
ASKED: dict[str, Any] = {"model": "emulated", "input": "Will it rain in Delft?"}
REQUIRED = {**ASKED, "tools": [WEATHER], "tool_choice": "required"}
BACKGROUND = {**ASKED, "background": True}
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the data of each event; each has the type that its line `event:` names."""
    events = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith(":")]
        if lines:
            named, data = lines
            event = json.loads(data.removeprefix("data: "))
            assert event["type"] == named.removeprefix("event: ")
            events.append(event)
    return events


async def test_a_text_is_answered_with_what_the_request_said(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(
        **ASKED, instructions="Be brief.", metadata={"of": "test"}, temperature=0.5, max_output_tokens=5
    )
    assert (answer.status, answer.object, answer.store) == ("incomplete", "response", True)
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output_text
    assert (answer.instructions, answer.metadata, answer.temperature) == ("Be brief.", {"of": "test"}, 0.5)
    assert answer.usage is not None
    assert answer.usage.output_tokens == 5
    assert await client.responses.retrieve(answer.id) == answer
    # Strictly: fields that the client's types do not know, or of another type, would fail.
    Response.model_validate(answer.model_dump(by_alias=True), strict=True)


async def test_a_tool_is_called_and_its_result_continues_the_response(
    client: openai.AsyncOpenAI, cluster: Cluster
) -> None:
    first = await client.responses.create(**REQUIRED)
    assert first.status == "completed"
    (call,) = first.output
    assert call.type == "function_call"
    assert set(json.loads(call.arguments)) == {"town", "days"}
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    second = await client.responses.create(
        model="emulated", previous_response_id=first.id, input=[result], max_output_tokens=8
    )
    by_hand = await client.responses.create(
        model="emulated",
        input=[{"role": "user", "content": ASKED["input"]}, call.model_dump(exclude_none=True), result],
        max_output_tokens=8,
    )
    assert second.output_text == by_hand.output_text != ""
    prompts = [request.prompt_ids for request in cluster.agent.leased]
    assert prompts[1] == prompts[2]


async def test_a_conversation_has_the_answers_between_but_not_earlier_instructions(
    client: openai.AsyncOpenAI, cluster: Cluster
) -> None:
    first = await client.responses.create(**ASKED, instructions="PIRATE", max_output_tokens=6)
    second = await client.responses.create(
        model="emulated", input="And then?", previous_response_id=first.id, max_output_tokens=6
    )
    await client.responses.create(
        model="emulated", input="Why?", previous_response_id=second.id, max_output_tokens=6
    )
    prompt = bytes(id for id in cluster.agent.leased[-1].prompt_ids if id < 256).decode()
    said = [ASKED["input"], first.output_text, "And then?", second.output_text, "Why?"]
    places = [prompt.index(each) for each in said]
    assert places == sorted(places)
    assert "PIRATE" not in prompt


async def test_items_may_be_named_by_their_ids(client: openai.AsyncOpenAI, cluster: Cluster) -> None:
    first = await client.responses.create(**REQUIRED)
    (call,) = first.output
    assert call.type == "function_call" and call.id is not None
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    question: Any = {"role": "user", "content": ASKED["input"]}
    named: Any = {"type": "item_reference", "id": call.id}
    short: dict[str, Any] = {"model": "emulated", "max_output_tokens": 8}
    second = await client.responses.create(**short, input=[question, named, result])
    given: Any = call.model_dump(exclude_none=True)
    assert await client.responses.create(**short, input=[question, given, result])
    said: Any = {"type": "item_reference", "id": second.output[0].id}
    await client.responses.create(**short, input=[question, named, result, said, question])
    await client.responses.create(**short, input=[question], previous_response_id=second.id)
    prompts = [request.prompt_ids for request in cluster.agent.leased[1:]]
    assert prompts[0] == prompts[1], "a reference is as its item"
    assert prompts[2] == prompts[3], "a response keeps the items that its references name"


async def test_an_item_may_be_named_once(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(**ASKED, max_output_tokens=3)
    named: Any = {"type": "item_reference", "id": first.output[0].id}
    question: Any = {"role": "user", "content": ASKED["input"]}
    with pytest.raises(openai.BadRequestError, match="expected each item once") as caught:
        await client.responses.create(model="emulated", input=[named, question, named])
    assert caught.value.param == "input[2].id"


async def test_items_that_are_named_are_together_no_larger_than_a_body(
    client: openai.AsyncOpenAI, cluster: Cluster, tiers: RenderTiers
) -> None:
    made = [await client.responses.create(**ASKED, max_output_tokens=3) for _ in range(9)]
    named: Any = [{"type": "item_reference", "id": each.output[0].id} for each in made]
    assert await client.responses.create(model="emulated", input=named)
    url = await cluster.gateway(limits=GatewayLimits(body_bytes_max=1024), render_tiers=tiers)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=20) as small:
        assert await small.responses.create(model="emulated", input=named[:1])
        with pytest.raises(openai.APIStatusError, match="items that input names") as caught:
            await small.responses.create(model="emulated", input=named)
    assert (caught.value.status_code, caught.value.code) == (413, "body_too_large")


class Trip(BaseModel):
    town: str
    days: int


async def test_parse_returns_an_object_of_the_schema(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.parse(model="emulated", input="Plan a trip", text_format=Trip)
    assert isinstance(answer.output_parsed, Trip)


@pytest.mark.parametrize("asked", [ASKED, REQUIRED, {**ASKED, "max_output_tokens": 7}])
async def test_the_events_of_a_stream_make_the_whole_response(
    client: openai.AsyncOpenAI, asked: dict[str, Any]
) -> None:
    whole = await client.responses.create(**asked)
    async with client.responses.stream(**asked) as stream:
        events = [event async for event in stream]
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    final = last.response
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-1] == f"response.{whole.status}"
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers)), "each number once, in order"
    assert final.output_text == whole.output_text
    assert [each.type for each in final.output] == [each.type for each in whole.output]
    assert final.usage == whole.usage


async def test_every_event_has_the_fields_of_the_clients_types(http: httpx.AsyncClient) -> None:
    for asked in (ASKED, REQUIRED, BACKGROUND):
        answer = await http.post("/v1/responses", json={**asked, "stream": True})
        for event in events_of(answer.text):
            EVENT.validate_python(event)


@pytest.mark.parametrize("asked", [{**ASKED, "max_output_tokens": 40}, REQUIRED])
async def test_a_stream_goes_on_after_any_event_at_another_gateway(
    cluster: Cluster, tiers: RenderTiers, http: httpx.AsyncClient, asked: dict[str, Any]
) -> None:
    first = await http.post("/v1/responses", json={**asked, "stream": True, "background": True})
    events = events_of(first.text)
    id = events[0]["response"]["id"]
    assert [each["type"] for each in events[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    other = await cluster.gateway(render_tiers=tiers)
    async with httpx.AsyncClient(base_url=other, timeout=20) as elsewhere:
        for place in {*range(0, len(events), 9), 1, 2, 3, 4, *range(len(events) - 5, len(events))}:
            after = events[place]["sequence_number"]
            rest = await elsewhere.get(f"/v1/responses/{id}?stream=true&starting_after={after}")
            got = events_of(rest.text)
            assert text_of(got) == text_of(events[place + 1 :]), after
            assert got[-1:] == events[place + 1 :][-1:], after
            assert all(each["sequence_number"] > after for each in got)


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(each["delta"] for each in events if each["type"].endswith(".delta"))


async def test_a_response_in_the_background_is_polled_and_streamed_later(
    client: openai.AsyncOpenAI, cluster: Cluster
) -> None:
    await cluster.agent.rest()
    asked = await client.responses.create(**BACKGROUND)
    assert (asked.status, asked.background, asked.output) == ("queued", True, [])
    assert (await client.responses.retrieve(asked.id)).status == "queued"
    cluster.agent.working.set()

    async def ended() -> bool:
        return (await client.responses.retrieve(asked.id)).status not in ("queued", "in_progress")

    await until(ended)
    final = await client.responses.retrieve(asked.id)
    assert final.status == "completed"
    text = ""
    async for event in await client.responses.retrieve(asked.id, stream=True, starting_after=3):
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert text == final.output_text != ""


async def test_a_response_in_the_background_is_cancelled(
    client: openai.AsyncOpenAI, cluster: Cluster
) -> None:
    cluster.agent.pause_at = 4
    stream = await client.responses.create(**BACKGROUND, stream=True)
    id = ""
    async for event in stream:
        if event.type == "response.created":
            id = event.response.id
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    assert (await client.responses.retrieve(id)).status == "in_progress"
    assert (await client.responses.cancel(id)).status == "cancelled"

    async def ended() -> bool:
        return bool(cluster.agent.ended)

    await until(ended)
    after = await client.responses.retrieve(id)
    assert (after.status, after.error) == ("cancelled", None)
    with pytest.raises(openai.BadRequestError, match="ended as cancelled"):
        await client.responses.create(**ASKED, previous_response_id=id)


async def test_a_response_that_was_not_to_be_stored_is_not_found(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(**ASKED, store=False, max_output_tokens=3)
    assert answer.store is False
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(answer.id)
    with pytest.raises(openai.NotFoundError) as error:
        await client.responses.create(**ASKED, previous_response_id=answer.id)
    assert error.value.param == "previous_response_id"


WRONG: Final[list[tuple[dict[str, Any], str, str]]] = [
    ({"tools": [{"type": "file_search"}]}, "tools[0].type", "file_search"),
    ({"tools": [{"name": "weather"}]}, "tools[0].type", "missing"),
    ({"tools": [{"type": "namespace", "name": "a", "tools": [{"name": "b"}]}]}, "tools[0].tools[0].type", ""),
    ({"input": [{"type": "function_call", "namespace": 1}]}, "input[0].namespace", "1"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "missing"),
    ({"tool_choice": "sometimes"}, "tool_choice", "sometimes"),
    ({"conversation": "conv_1"}, "conversation", "not supported"),
    ({"include": ["file_search_call.results"]}, "include[0]", "file_search"),
    ({"truncation": "auto"}, "truncation", "disabled"),
    ({"input": []}, "input", "1 to"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
        "input[0].content[0].type",
        "input_file",
    ),
    ({"input": [{"type": "item_reference", "id": "msg_x_0"}]}, "input[0].id", "msg_x_0"),
    ({"input": [{"type": "item_reference", "id": 1}]}, "input[0].id", "1"),
    ({"input": [{"type": "function_call_output", "output": ""}]}, "input[0].call_id", "null"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format", "schema"),
    ({"text": {"verbosity": "high"}}, "text.verbosity", "high"),
    ({"background": True, "store": False}, "store", "background"),
    ({"max_output_tokens": 100_000}, "max_output_tokens", "maximum context length"),
    ({"input": "x" * 5000}, "input", "maximum context length"),
    ({"max_tokens": 5}, "max_tokens", "not supported"),
    ({"previous_response_id": "resp_0"}, "previous_response_id", "response resp_0 not found"),
]


async def test_what_is_wrong_is_refused_by_name(http: httpx.AsyncClient, cluster: Cluster) -> None:
    for body, param, words in WRONG:
        answer = await http.post("/v1/responses", json=ASKED | body)
        error = answer.json()["error"]
        assert (answer.status_code in (400, 404), error["param"]) == (True, param), error
        assert words in error["message"], error["message"]
    assert await cluster.broker.queues() == []


async def test_a_wrong_form_or_place_is_refused_for_a_stored_response_with_and_without_a_stream(
    http: httpx.AsyncClient,
) -> None:
    id = (await http.post("/v1/responses", json=ASKED | {"max_output_tokens": 3})).json()["id"]
    for query in ({}, {"stream": "true"}):
        answer = await http.get(f"/v1/responses/{id}", params=query, headers={"x-qlm-stream": "other"})
        assert answer.status_code == 400 and "x-qlm-stream" in answer.json()["error"]["message"]
        after = await http.get(f"/v1/responses/{id}", params=query | {"starting_after": "x"})
        assert (after.status_code, after.json()["error"]["param"]) == (400, "starting_after")


async def test_a_key_finds_the_response_again_and_no_chat(http: httpx.AsyncClient) -> None:
    key = {"idempotency-key": "k1"}
    first = await http.post("/v1/responses", json=ASKED, headers=key)
    assert (await http.post("/v1/responses", json=ASKED, headers=key)).json() == first.json()
    other = await http.post("/v1/responses", json=ASKED | {"metadata": {"a": "b"}}, headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")


async def test_the_input_of_a_large_response_is_not_kept_and_the_error_says_so(
    http: httpx.AsyncClient,
) -> None:
    noise = [{"type": "summary_text", "text": random.Random(3).randbytes(60_000).hex()}]
    items = [{"type": "reasoning", "summary": noise}, {"role": "user", "content": "Hi"}]
    first = await http.post("/v1/responses", json=ASKED | {"input": items, "max_output_tokens": 3})
    assert first.status_code == 200, first.text
    id = first.json()["id"]
    assert (await http.get(f"/v1/responses/{id}")).json() == first.json()
    second = await http.post("/v1/responses", json=ASKED | {"previous_response_id": id})
    assert second.status_code == 400
    assert "too large to be kept" in second.json()["error"]["message"]

"""Anthropic's Messages API over real HTTP: its unmodified client, an emulated render tier and engine."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, cast

import anthropic
import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from qlm.domain.outcome import Outcome
from support.gateway import Cluster, running_cluster, text_then_end, until
from support.http_calls import open_requests
from support.rendering import emulated_answer, emulated_tiers

WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "Weather of a town",
    "input_schema": {
        "type": "object",
        "properties": {"town": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
        "required": ["town", "days"],
    },
}
ASKED: dict[str, Any] = {
    "model": "emulated",
    "max_tokens": 300,
    "messages": [{"role": "user", "content": "Will it rain in Delft?"}],
}
REQUIRED = {**ASKED, "tools": [WEATHER], "tool_choice": {"type": "any"}}
EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


@pytest.fixture
async def client(url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=20) as made:
        yield made


def prompt_of(cluster: Cluster) -> str:
    return bytes(id for id in cluster.agent.leased[-1].prompt_ids if id < 256).decode()


async def test_a_text_is_answered(client: anthropic.AsyncAnthropic, cluster: Cluster) -> None:
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    answer = await client.messages.create(**ASKED | {"max_tokens": 5, "system": system})
    assert (answer.type, answer.role, answer.stop_reason) == ("message", "assistant", "max_tokens")
    (block,) = answer.content
    assert block.type == "text"
    assert block.text
    assert answer.usage.output_tokens == 5
    assert answer._request_id == answer.id.removeprefix("msg_")
    assert "Be brief." in prompt_of(cluster)
    counted = await client.messages.count_tokens(model="emulated", messages=ASKED["messages"], system=system)
    assert counted.input_tokens == answer.usage.input_tokens


async def test_a_tool_is_called_and_its_result_goes_back(
    client: anthropic.AsyncAnthropic, cluster: Cluster
) -> None:
    first = await client.messages.create(**REQUIRED)
    assert first.stop_reason == "tool_use"
    (call,) = first.content
    assert call.type == "tool_use"
    assert call.name == "weather"
    assert set(call.input) == {"town", "days"}
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain.", "is_error": False}
    history: Any = [
        *ASKED["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result, {"type": "text", "text": "And then?"}]},
    ]
    answer, cluster.agent.answer = cluster.agent.answer, lambda _: text_then_end("It rains.")
    second = await client.messages.create(**ASKED | {"messages": history, "max_tokens": 8})
    assert second.content[0].type == "text"
    cluster.agent.answer = answer
    prompt = prompt_of(cluster)
    assert prompt.index("Rain.") < prompt.index("And then?")
    named = REQUIRED | {"tool_choice": {"type": "tool", "name": "weather"}}
    assert (await client.messages.create(**named)).stop_reason == "tool_use"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_runner_of_tools_goes_on_without_a_thread(
    client: anthropic.AsyncAnthropic, cluster: Cluster, stream: bool
) -> None:
    asked: list[str] = []

    @anthropic.beta_async_tool
    async def weather(town: str) -> str:
        """Weather of a town."""
        asked.append(town)
        return "Rain."

    call = '[{"name": "weather", "parameters": {"town": "Delft"}}]'
    cluster.agent.answer = lambda request: text_then_end("It rains." if asked else call)
    messages: Any = ASKED["messages"]
    runner = client.beta.messages.tool_runner(
        model="emulated", max_tokens=300, messages=messages, tools=[weather], stream=stream
    )
    last = await runner.until_done()
    assert asked == ["Delft"]
    assert [block.to_dict()["text"] for block in last.content] == ["It rains."]
    assert "Will it rain in Delft?" in prompt_of(cluster), "the whole conversation was sent"


async def test_json_fits_its_schema(client: anthropic.AsyncAnthropic) -> None:
    form: Any = {"type": "json_schema", "schema": WEATHER["input_schema"]}
    answer = await client.messages.create(**ASKED, output_config={"format": form})
    assert answer.content[0].type == "text"
    assert set(json.loads(answer.content[0].text)) == {"town", "days"}


async def test_a_stop_sequence_is_named(client: anthropic.AsyncAnthropic, cluster: Cluster) -> None:
    cluster.agent.answer = lambda request: text_then_end("One. Two. Three.")
    answer = await client.messages.create(**ASKED, stop_sequences=["Three", "Two"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "Two")
    assert answer.content[0].type == "text"
    assert answer.content[0].text == "One. "


async def test_a_stop_sequence_ends_an_answer_that_may_call_tools(
    client: anthropic.AsyncAnthropic, cluster: Cluster
) -> None:
    cluster.agent.answer = lambda request: text_then_end("One. Two. Three.")
    asked: Any = {**ASKED, "tools": [WEATHER], "stop_sequences": ["Three", "Two"]}
    whole = await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        streamed: Message = await stream.get_final_message()
    for answer in (whole, streamed):
        assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "Two")
        assert [block.to_dict()["text"] for block in answer.content] == ["One. "]


async def test_a_stop_sequence_behind_a_call_does_not_hide_it(
    client: anthropic.AsyncAnthropic, cluster: Cluster
) -> None:
    call = '[{"name": "weather", "parameters": {"town": "Delft", "days": 1}}]'
    cluster.agent.answer = lambda request: text_then_end(f"{call}Observation: rain")
    asked: Any = {**ASKED, "tools": [WEATHER], "stop_sequences": ["Observation:"]}
    whole = await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        streamed: Message = await stream.get_final_message()
    for answer in (whole, streamed):
        assert (answer.stop_reason, answer.stop_sequence) == ("tool_use", None)
        assert [block.to_dict()["input"] for block in answer.content] == [{"town": "Delft", "days": 1}]


@pytest.mark.parametrize("asked", [ASKED, REQUIRED, {**ASKED, "max_tokens": 7}])
async def test_the_events_of_a_stream_make_the_whole_message(
    client: anthropic.AsyncAnthropic, asked: dict[str, Any]
) -> None:
    whole = await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_message()
    assert [events[0].type, events[-1].type] == ["message_start", "message_stop"]
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    named = [block.model_dump(exclude={"id", "parsed_output"}) for block in final.content]
    assert named == [block.model_dump(exclude={"id", "parsed_output"}) for block in whole.content]


async def test_every_answer_has_the_fields_of_the_clients_types(http: httpx.AsyncClient) -> None:
    for asked in (ASKED, REQUIRED):
        whole = await http.post("/v1/messages", json=asked)
        Message.model_validate_json(whole.text, strict=True)
        stream = await http.post("/v1/messages", json={**asked, "stream": True})
        for block in stream.text.split("\n\n")[:-1]:
            kind, data = block.split("\n")
            event = EVENT.validate_json(data.removeprefix("data: "))
            assert event.type == kind.removeprefix("event: ")


async def test_a_closed_stream_ends_its_request(client: anthropic.AsyncAnthropic, cluster: Cluster) -> None:
    cluster.agent.pause_at = 4
    stream = await client.messages.create(**ASKED, stream=True)
    async for event in stream:
        if event.type == "content_block_delta":
            break
    await stream.close()
    await until(lambda: cluster.agent.ended)
    assert [str(each) for each in cluster.agent.ended.values()] == ["cancelled"]


async def test_reasoning_is_shown_where_it_is_asked_for(tmp_path: Path) -> None:
    async with (
        emulated_tiers("emulated", reasons=True) as tiers,
        running_cluster(tmp_path) as cluster,
    ):
        cluster.agent.answer = emulated_answer
        url = await cluster.gateway(render_tiers=tiers)
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client:
            plain = await client.messages.create(**ASKED)
            assert "thinking" not in [block.type for block in plain.content]
            shown = await client.messages.create(**ASKED, thinking={"type": "enabled", "budget_tokens": 1024})
            async with client.messages.stream(**ASKED, thinking={"type": "adaptive"}) as stream:
                streamed = await stream.get_final_message()
    assert shown.usage.output_tokens == plain.usage.output_tokens
    assert [each.type for each in streamed.content] == [each.type for each in shown.content]


async def test_what_coding_agents_send_unasked_changes_nothing(http: httpx.AsyncClient) -> None:
    sent = {
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "thinking": {"type": "adaptive"},
        "metadata": {"user_id": "{}"},
    }
    messages = [*ASKED["messages"], {"role": "system", "content": "Be brief."}]
    answer = await http.post("/v1/messages", json=ASKED | sent | {"messages": messages})
    assert answer.status_code == 200, answer.text


WRONG: Final[list[tuple[dict[str, Any], str, str]]] = [
    (
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        "context_management",
        "edits",
    ),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type", "web_search"),
    (
        {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
        "messages[0].content[0].type",
        "document",
    ),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "tool"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "messages[0].role", "beginning"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "5"),
    ({"system": [{"type": "image"}]}, "system[0].type", "image"),
    ({"tool_choice": {"type": "tool"}, "tools": [WEATHER]}, "tool_choice.name", "missing"),
    ({"tool_choice": {"type": "any"}}, "tool_choice", "tools"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking", "not configured to reason"),
    ({"stop_sequences": ["a"] * 65}, "stop_sequences", "64"),
    ({"mcp_servers": [{"name": "x"}]}, "mcp_servers", "not supported"),
    ({"thread": {"type": "create"}}, "thread", "not kept"),
    ({"thread": False}, "thread", "not kept"),
    ({"temperature": 1.5}, "temperature", "1.5"),
    ({"max_tokens": None}, "max_tokens", "missing"),
    ({"max_tokens": 100_000}, "max_tokens", "input length and `max_tokens` exceed context limit"),
    ({"model": "small", "tools": [WEATHER]}, "tools", "render tier"),
]


async def test_what_is_wrong_is_refused_by_name_in_anthropics_shape(
    http: httpx.AsyncClient, client: anthropic.AsyncAnthropic, cluster: Cluster
) -> None:
    for body, param, words in WRONG:
        answer = await http.post("/v1/messages", json=ASKED | body)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
        assert words in error["message"], error["message"]
    with pytest.raises(anthropic.NotFoundError, match="unknown") as caught:
        await client.messages.create(**ASKED | {"model": "unknown"})
    assert caught.value.body == {
        "type": "error",
        "error": {
            "type": "not_found_error",
            "message": cast("dict[str, Any]", caught.value.body)["error"]["message"],
            "param": "model",
            "code": "model_not_found",
        },
        "request_id": caught.value.request_id,
    }
    assert await cluster.broker.queues() == []


async def test_an_overflow_has_the_words_by_which_agents_shorten_what_they_ask(
    http: httpx.AsyncClient,
) -> None:
    long = {"messages": [{"role": "user", "content": "a" * 50_000}]}
    for body, words in (
        (long, r"prompt is too long: 50\d+ tokens > \d+ maximum"),
        (long | {"tools": [WEATHER]}, r"prompt is too long: 50\d+ tokens > \d+ maximum"),
        ({"max_tokens": 100_000}, r"input length and `max_tokens` exceed context limit: \d+ \+ 100000 > \d+"),
    ):
        answer = await http.post("/v1/messages", json=ASKED | body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert re.match(words, error["message"]), error["message"]


async def test_a_list_of_no_system_blocks_is_no_system_message(
    client: anthropic.AsyncAnthropic, cluster: Cluster
) -> None:
    without: dict[str, Any] = {"model": ASKED["model"], "messages": ASKED["messages"]}
    prompts, counts = [], []
    for asked in (without, without | {"system": []}):
        await client.messages.create(max_tokens=5, **asked)
        prompts.append(prompt_of(cluster))
        counts.append(await client.messages.count_tokens(**asked))
    assert prompts[0] == prompts[1]
    assert counts[0] == counts[1]


async def test_the_retry_of_anthropics_sdk_takes_up_the_request_that_ran_into_its_timeout(
    http: httpx.AsyncClient, client: anthropic.AsyncAnthropic, cluster: Cluster, url: str
) -> None:
    cluster.agent.pause_at = 3
    impatient = client.with_options(timeout=1.0, max_retries=2)
    waiting = asyncio.create_task(impatient.messages.create(**ASKED))
    # A session that its client has left, and one of its retry.
    await until(lambda: open_requests(http, cluster.admin_urls[url], 2))
    cluster.agent.go.set()
    answer = await waiting
    (request,) = cluster.agent.leased
    assert answer.id == f"msg_{request.id}"
    assert list(cluster.agent.ended.values()) == [Outcome.STOP]


async def test_an_anthropic_sdk_that_leaves_before_its_timeout_has_left(
    client: anthropic.AsyncAnthropic, cluster: Cluster
) -> None:
    cluster.agent.pause_at = 3
    waiting = asyncio.create_task(client.with_options(max_retries=2).messages.create(**ASKED))
    await until(lambda: cluster.agent.leased)
    waiting.cancel()
    await until(lambda: list(cluster.agent.ended.values()) == [Outcome.CANCELLED], timeout_s=2)


async def test_every_error_has_the_id_of_its_headers(
    http: httpx.AsyncClient, client: anthropic.AsyncAnthropic
) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        await client.messages.create(**ASKED | {"max_tokens": 0})
    assert caught.value.request_id
    errors = [
        await http.post("/v1/messages", json=ASKED | {"max_tokens": 0}),
        await http.post("/v1/messages/count_tokens", json={"model": "unknown", "messages": []}),
        await http.post("/v1/messages", content=b"{}", headers={"content-type": "text/plain"}),
    ]
    assert [each.status_code for each in errors] == [400, 400, 415]
    for each in errors:
        id = each.json()["request_id"]
        assert id and id == each.headers["x-request-id"] == each.headers["request-id"]

"""Tools and JSON by schema over real HTTP: OpenAI's unmodified client, an emulated render tier and engine."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from qlm.domain.sampling import Evictability
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.render.rendering import RenderTiers
from support.gateway import Cluster, until
from support.rendering import tiers_at

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a town",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["town", "days"],
        },
    },
}
ASKED: dict[str, Any] = {
    "model": "emulated",
    "messages": [{"role": "user", "content": "Will it rain in Delft?"}],
    "tools": [WEATHER],
}
REQUIRED = {**ASKED, "tool_choice": "required"}
RESUMABLE = {"x-qlm-stream": "resumable"}
NAMED = {**ASKED, "tool_choice": {"type": "function", "function": {"name": "weather"}}}


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=20, headers=RESUMABLE) as made:
        yield made


@dataclass
class Streamed:
    """A streamed answer, put together."""

    content: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    finish: str | None = None

    def add(self, chunk: dict[str, Any]) -> None:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            self.content += delta.get("content") or ""
            self.finish = choice["finish_reason"] or self.finish
            for call in delta.get("tool_calls", ()):
                known = self.calls.setdefault(call["index"], {"arguments": ""})
                known |= {key: call[key] for key in ("id",) if key in call}
                known |= {"name": name} if (name := call["function"].get("name")) else {}
                known["arguments"] += call["function"].get("arguments", "")


async def test_a_required_tool_is_called_and_its_result_goes_back(client: openai.AsyncOpenAI) -> None:
    first = await client.chat.completions.create(**REQUIRED)
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"town", "days"}
    assert arguments["days"] >= 1
    result = {"role": "tool", "tool_call_id": call.id, "content": "Rain."}
    history = [*ASKED["messages"], choice.message.model_dump(), result]
    # The length of an emulated answer is drawn from its prompt, in which the id of the call is random.
    second = await client.chat.completions.create(
        model="emulated", messages=history, max_tokens=8, extra_body={"min_tokens": 4}
    )
    assert second.choices[0].message.content
    assert second.usage is not None and first.usage is not None
    assert second.usage.prompt_tokens > first.usage.prompt_tokens - len(json.dumps([WEATHER]))


async def test_a_named_tool_ends_as_stop(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**NAMED)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.tool_calls is not None
    (call,) = answer.choices[0].message.tool_calls
    assert call.type == "function"
    assert call.function.name == "weather"
    json.loads(call.function.arguments)


async def test_with_the_choice_of_the_model_text_may_come(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**ASKED, max_tokens=12)
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")


class Trip(BaseModel):
    town: str
    days: int
    stops: list[str]


async def test_parse_returns_an_object_of_the_schema(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.parse(
        model="emulated", messages=[{"role": "user", "content": "Plan a trip"}], response_format=Trip
    )
    assert isinstance(answer.choices[0].message.parsed, Trip)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("structured_outputs", {"json": Trip.model_json_schema()}),
    ],
)
async def test_json_is_answered_where_it_is_asked_for(
    client: openai.AsyncOpenAI, cluster: Cluster, field: str, value: dict[str, Any]
) -> None:
    answer = await client.chat.completions.create(
        model="emulated", messages=[{"role": "user", "content": "JSON, please"}], extra_body={field: value}
    )
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)
    (request,) = cluster.agent.leased
    assert request.evictability is Evictability.PINNED, "an engine would begin the grammar anew"
    assert request.extensions.render_state is None, "the gateway makes plain text by itself"


@pytest.mark.parametrize(("body", "finish"), [(REQUIRED, "tool_calls"), (NAMED, "stop")])
async def test_a_stream_has_the_parts_of_the_whole_answer(
    client: openai.AsyncOpenAI, body: dict[str, Any], finish: str
) -> None:
    whole = await client.chat.completions.create(**body)
    streamed = Streamed()
    async for chunk in await client.chat.completions.create(**body, stream=True):
        streamed.add(chunk.model_dump(exclude_unset=True))
    assert whole.choices[0].message.tool_calls is not None
    (call,) = whole.choices[0].message.tool_calls
    assert call.type == "function"
    assert streamed.finish == whole.choices[0].finish_reason == finish
    assert streamed.calls[0]["id"]
    assert streamed.calls[0]["name"] == call.function.name
    assert json.loads(streamed.calls[0]["arguments"]) == json.loads(call.function.arguments)


def events_of(text: str) -> list[tuple[int, str]]:
    """Return number of tokens and data of each event."""
    events, offset = [], 0
    for line in text.splitlines():
        if line.startswith("id: "):
            offset = int(line.removeprefix("id: "))
        if line.startswith("data: "):
            events.append((offset, line.removeprefix("data: ")))
    return events


async def test_a_stream_resumed_anywhere_at_another_gateway_repeats_none_and_changes_none(
    cluster: Cluster, tiers: RenderTiers, http: httpx.AsyncClient
) -> None:
    plain = await http.post("/v1/chat/completions", json={**REQUIRED, "stream": True})
    id = plain.headers["x-request-id"]
    events = events_of(plain.text)
    assert len(events) > 10
    assert events[-1][1] == "[DONE]"
    other = await cluster.gateway(render_tiers=tiers)
    async with httpx.AsyncClient(base_url=other, timeout=20, headers=RESUMABLE) as elsewhere:
        for shown in sorted({offset for offset, _ in events}):
            rest = await elsewhere.get(f"/v1/requests/{id}/events", headers={"last-event-id": str(shown)})
            last = events[-1][0]
            missing = [each for each in events if each[0] > shown or (each[0] == last and shown == last)]
            got = events_of(rest.text)
            # After the last token only the end is left.
            assert got == (missing if shown < last else events[-2:]), shown
        state = (await elsewhere.get(f"/v1/requests/{id}")).json()
    (call,) = state["response"]["choices"][0]["message"]["tool_calls"]
    streamed = Streamed()
    for _, data in events[:-1]:
        streamed.add(json.loads(data))
    assert streamed.calls[0]["id"] == call["id"], "ids derive from the request"
    assert streamed.calls[0]["arguments"] == call["function"]["arguments"]


async def test_a_stream_resumed_before_its_end_goes_on_with_the_same_deltas(
    cluster: Cluster, tiers: RenderTiers, http: httpx.AsyncClient
) -> None:
    reference = await http.post("/v1/chat/completions", json={**REQUIRED, "stream": True})
    cluster.agent.pause_at = 40
    lines: list[str] = []
    async with http.stream("POST", "/v1/chat/completions", json={**REQUIRED, "stream": True}) as answer:
        id = answer.headers["x-request-id"]
        async for line in answer.aiter_lines():
            lines.append(line)
            if line.startswith("id: ") and int(line.removeprefix("id: ")) >= 30:
                break
    shown = int(lines.pop().removeprefix("id: "))
    before = [each for each in events_of("\n".join(lines)) if each[0] < shown]
    cluster.agent.go.set()
    other = await cluster.gateway(render_tiers=tiers)
    async with httpx.AsyncClient(base_url=other, timeout=20, headers=RESUMABLE) as elsewhere:
        after = await elsewhere.get(
            f"/v1/requests/{id}/events", headers={"last-event-id": str(before[-1][0])}
        )
    joined, wanted = Streamed(), Streamed()
    for _, data in [*before, *events_of(after.text)[:-1]]:
        joined.add(json.loads(data))
    for _, data in events_of(reference.text)[:-1]:
        wanted.add(json.loads(data))
    assert joined.calls[0]["arguments"] == wanted.calls[0]["arguments"]
    assert joined.calls[0]["name"] == "weather"


async def test_an_asynchronous_request_has_its_tool_calls_in_its_state(http: httpx.AsyncClient) -> None:
    accepted = await http.post("/v1/chat/completions", json=REQUIRED, headers={"prefer": "respond-async"})
    location = accepted.headers["location"]

    async def ended() -> bool:
        return bool((await http.get(location)).json()["status"] == "ended")

    await until(ended)
    message = (await http.get(location)).json()["response"]["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "weather"


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({**ASKED, "tool_choice": "sometimes"}, "tool_choice", ["sometimes"]),
        ({**ASKED, "tools": [], "tool_choice": "required"}, "tool_choice", ["tools"]),
        ({**ASKED, "messages": [{"role": "user", "content": None}]}, "messages[0].content", ["null"]),
        ({**ASKED, "tools": "all"}, "tools", ["all"]),
        ({**ASKED, "response_format": {"type": "xml"}}, "response_format.type", ["xml"]),
        ({**ASKED, "tools": [{"type": "function"}]}, "tools[0].function", ["missing"]),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    http: httpx.AsyncClient, cluster: Cluster, body: dict[str, Any], param: str, words: list[str]
) -> None:
    answer = await http.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert all(word in error["message"] for word in words), error["message"]
    assert await cluster.broker.queues() == []


async def test_a_model_without_a_render_tier_refuses_tools_by_name(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/chat/completions", json={**REQUIRED, "model": "small"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "tools", "unsupported_value")
    assert "small has no render tier" in error["message"]


async def test_a_render_tier_that_is_away_is_a_503_with_its_name_and_plain_text_is_served(
    cluster: Cluster,
) -> None:
    async with tiers_at("http://127.0.0.1:9", "emulated") as away:
        url = await cluster.gateway(render_tiers=away, limits=GatewayLimits())
        async with httpx.AsyncClient(base_url=url, timeout=20) as http:
            for _ in range(5):
                answer = await http.post("/v1/chat/completions", json=REQUIRED)
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (503, "render_unavailable")
                assert "the render tier of emulated is away" in error["message"]
                assert answer.headers["x-should-retry"] == "true"
            assert "the last calls" in error["message"], "the breaker is open"
            plain = {"model": "emulated", "messages": ASKED["messages"], "max_tokens": 5}
            assert (await http.post("/v1/chat/completions", json=plain)).status_code == 200

"""Stop texts of chats whose messages a render tier makes: beside tools, and of models that reason."""

import json
from typing import Any

import httpx
import openai
import pytest

from qlm.gateway.render.rendering import RenderTiers
from support.gateway import Cluster, text_then_end, until
from support.rendering import emulated_tiers

TEXT = "I think so. Obs Observ Observation: rain"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
ASKED: dict[str, Any] = {
    "model": "emulated",
    "messages": [{"role": "user", "content": "Will it rain in Delft?"}],
    "tools": [TOOL],
    "stop": ["Observation:", "Calling tools:"],  # as smolagents asks
}
RESUMABLE = {"x-qlm-stream": "resumable"}


def events_of(text: str) -> list[tuple[int, str]]:
    """Return position and data of each event."""
    events, position = [], 0
    for line in text.splitlines():
        if line.startswith("id: "):
            position = int(line.removeprefix("id: "))
        if line.startswith("data: "):
            events.append((position, line.removeprefix("data: ")))
    return events


def content_of(events: list[tuple[int, str]]) -> str:
    choices = [each for _, data in events[:-1] for each in json.loads(data)["choices"]]
    return "".join(each["delta"].get("content") or "" for each in choices)


@pytest.mark.parametrize(("included", "text"), [(False, "I think so. Obs Observ "), (True, TEXT[:-5])])
async def test_a_stop_beside_tools_ends_the_text_whole_streamed_and_later(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, cluster: Cluster, included: bool, text: str
) -> None:
    cluster.agent.answer = lambda request: text_then_end(TEXT)
    asked = {**ASKED, "extra_body": {"include_stop_str_in_output": included}}
    whole = await client.chat.completions.create(**asked)
    choice = whole.choices[0]
    assert (choice.message.content, choice.finish_reason) == (text, "stop")
    assert choice.model_dump()["stop_reason"] == "Observation:"
    streamed, reasons = "", []
    async for chunk in await client.chat.completions.create(**asked, stream=True):
        streamed += chunk.choices[0].delta.content or ""
        ended = chunk.choices[0].model_dump()
        reasons.append((ended["finish_reason"], ended.get("stop_reason")))
    assert (streamed, reasons[-1]) == (text, ("stop", "Observation:"))
    assert set(reasons[:-1]) == {(None, None)}
    later = await http.get(f"/v1/requests/{whole.id}")
    assert later.json()["response"]["choices"][0]["message"]["content"] == text


async def test_tools_are_called_beside_a_stop_that_is_not_met(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**ASKED, tool_choice="required")
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.tool_calls is not None
    names = []
    async for chunk in await client.chat.completions.create(**ASKED, tool_choice="required", stream=True):
        calls = chunk.choices[0].delta.tool_calls or []
        names += [call.function.name for call in calls if call.function and call.function.name]
    assert names == ["weather"]


async def test_a_stream_with_a_stop_beside_tools_is_the_same_wherever_it_is_resumed(
    cluster: Cluster, tiers: RenderTiers, http: httpx.AsyncClient
) -> None:
    cluster.agent.answer = lambda request: text_then_end("word and " * 20 + TEXT)
    plain = await http.post("/v1/chat/completions", json={**ASKED, "stream": True}, headers=RESUMABLE)
    id, events = plain.headers["x-request-id"], events_of(plain.text)
    assert content_of(events) == "word and " * 20 + "I think so. Obs Observ "
    positions = [position for position, _ in events]
    assert positions == sorted(positions)
    other = await cluster.gateway(render_tiers=tiers)
    async with httpx.AsyncClient(base_url=other, timeout=20, headers=RESUMABLE) as elsewhere:
        for shown in sorted({each for each in positions if each < positions[-1]}):
            rest = await elsewhere.get(f"/v1/requests/{id}/events", headers={"last-event-id": str(shown)})
            assert events_of(rest.text) == [each for each in events if each[0] > shown], shown


async def test_a_stop_ends_the_generation(client: openai.AsyncOpenAI, cluster: Cluster) -> None:
    cluster.agent.answer = lambda request: (*TEXT.encode(), *b" and more" * 200)
    await client.chat.completions.create(**ASKED, max_tokens=2000)
    (request,) = cluster.agent.leased
    await until(lambda: request.id in cluster.agent.ended)


async def test_a_model_that_reasons_takes_a_stop(cluster: Cluster) -> None:
    cluster.agent.answer = lambda request: text_then_end(TEXT)
    async with emulated_tiers("emulated", reasons=True) as tiers:
        url = await cluster.gateway(render_tiers=tiers)
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            answer = await client.chat.completions.create(
                model="emulated", messages=ASKED["messages"], stop="Observation:"
            )
    assert answer.choices[0].message.content == "I think so. Obs Observ "

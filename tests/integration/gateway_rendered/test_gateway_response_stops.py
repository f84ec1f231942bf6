"""Responses with the fields of vLLM about stops, special tokens and reasoning."""

from collections.abc import AsyncIterator
from typing import Any, Final

import openai
import pytest

from qlm.gateway.api.ids import request_id
from qlm.gateway.render.state import unpack
from support.gateway import Cluster, ScriptedAgent, text_then_end, until
from support.rendering import emulated_tiers

ASKED: Final[dict[str, Any]] = {"model": "emulated", "input": "Hi"}
TEXT: Final = "One, two, three."


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client that tries again while the machine has too little processor, as by default."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=20) as made:
        yield made


@pytest.fixture(autouse=True)
def counting(cluster: Cluster) -> None:
    """Let each answer count to three."""
    cluster.agent.answer = lambda request: text_then_end(TEXT)


@pytest.mark.parametrize("stop", ["two", ["three", "two"]])
@pytest.mark.parametrize(("included", "text"), [(None, "One, "), (False, "One, "), (True, "One, two")])
async def test_a_stop_ends_the_text_whole_streamed_and_later(
    client: openai.AsyncOpenAI, stop: Any, included: bool | None, text: str
) -> None:
    more = {"stop": stop} | ({} if included is None else {"include_stop_str_in_output": included})
    whole = await client.responses.create(**ASKED, extra_body=more)
    assert (whole.output_text, whole.status) == (text, "completed")
    assert (await client.responses.retrieve(whole.id)).output_text == text
    stream = await client.responses.create(**ASKED, stream=True, extra_body=more)
    pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
    assert "".join(pieces) == text


@pytest.fixture
def slow_to_end(cluster: Cluster) -> ScriptedAgent:
    """Let the engine hold answers after 12 tokens, also those that it is asked to end."""
    cluster.agent.pause_at, cluster.agent.deaf = 12, True
    return cluster.agent


async def test_an_answer_that_met_a_stop_is_complete_before_its_engine_has_ended_it(
    client: openai.AsyncOpenAI, cluster: Cluster, slow_to_end: ScriptedAgent
) -> None:
    first = await client.responses.create(**ASKED, background=True, extra_body={"stop": "two"})
    seen = []

    async def has_ended() -> bool:
        seen.append(await client.responses.retrieve(first.id))
        return seen[-1].status not in ("queued", "in_progress")

    await until(has_ended)
    assert (seen[-1].status, seen[-1].output_text) == ("completed", "One, ")
    assert not slow_to_end.ended, "its engine has not ended it yet"
    slow_to_end.deaf = False
    await until(lambda: slow_to_end.ended)
    assert await client.responses.retrieve(first.id) == seen[-1]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_met_a_stop_can_be_continued_at_once(
    client: openai.AsyncOpenAI, cluster: Cluster, slow_to_end: ScriptedAgent, stream: bool
) -> None:
    first: Any = await client.responses.create(**ASKED, stream=stream, extra_body={"stop": "two"})
    if stream:
        first = [event async for event in first][-1].response
    assert first.status == "completed"
    cluster.agent.answer = lambda request: text_then_end("Four.")
    second = await client.responses.create(**ASKED, previous_response_id=first.id)
    assert (second.output_text, list(slow_to_end.ended)) == ("Four.", [cluster.agent.leased[-1].id])
    prompt = bytes(id for id in cluster.agent.leased[-1].prompt_ids if id < 256).decode()
    assert "One, " in prompt and "two" not in prompt


async def test_special_tokens_are_left_in_the_text_if_asked_for(
    client: openai.AsyncOpenAI, cluster: Cluster
) -> None:
    await client.responses.create(**ASKED, extra_body={"skip_special_tokens": False})
    await client.responses.create(**ASKED)
    assert [each.answer.skip_special_tokens for each in cluster.agent.leased] == [False, True]


async def test_the_render_tier_is_asked_to_leave_reasoning_out(cluster: Cluster) -> None:
    async with emulated_tiers("emulated", reasons=True) as tiers:
        url = await cluster.gateway(render_tiers=tiers)
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=20) as client:
            await client.responses.create(**ASKED, extra_body={"include_reasoning": False})
        state = cluster.agent.leased[0].extensions.render_state
    assert state is not None and unpack(state).chat_request["include_reasoning"] is False


async def test_log_probabilities_would_show_the_reasoning(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="include_reasoning is false; expected no") as caught:
        await client.responses.create(
            **ASKED, include=["message.output_text.logprobs"], extra_body={"include_reasoning": False}
        )
    assert caught.value.param == "include_reasoning"


@pytest.mark.parametrize("stop", ["", ["a"] * 65, [1], {"a": 1}])
async def test_a_wrong_stop_is_named(client: openai.AsyncOpenAI, stop: Any) -> None:
    with pytest.raises(openai.BadRequestError, match=r"stop is .*; expected a string or a list") as caught:
        await client.responses.create(**ASKED, extra_body={"stop": stop})
    assert caught.value.param == "stop"


async def test_an_answer_that_has_not_met_a_stop_is_not_waited_for(
    client: openai.AsyncOpenAI, cluster: Cluster, slow_to_end: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qlm.gateway.http.responses_api.earlier.STOP_WAIT_S", 3600.0)
    first = await client.responses.create(**ASKED, background=True, extra_body={"stop": "four"})

    async def has_output() -> bool:
        record = await cluster.store.record(request_id(first.id))
        return record is not None and record.output_tokens > 0

    await until(has_output)
    with pytest.raises(openai.BadRequestError, match="has not ended yet"):
        await client.responses.create(**ASKED, previous_response_id=first.id)
    named: Any = {"type": "item_reference", "id": f"msg_{first.id.removeprefix('resp_')}_0"}
    with pytest.raises(openai.BadRequestError, match="expected the id of an item of a response that has end"):
        await client.responses.create(model="emulated", input=[named])

"""Log probabilities of responses: as those of a chat; OpenAI's unmodified client, an emulated engine."""

from collections.abc import AsyncIterator
from typing import Any, Final

import openai
import pytest
from openai.types.responses import Response

from support.gateway import Cluster

SCORED: Final[dict[str, Any]] = {
    "model": "emulated",
    "input": "Will it rain in Delft?",
    "max_output_tokens": 12,
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 2,
}
TOOL: Final = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": None}


@pytest.fixture
async def client(url: str, cluster: Cluster) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=20) as made:
        yield made


def scores(response: Any) -> list[dict[str, Any]]:
    """Return the log probabilities of the one message of a response."""
    (message,) = (each for each in response.output if each.type == "message")
    (part,) = message.content
    return [each.model_dump() for each in part.logprobs or ()]


async def test_a_text_has_the_log_probabilities_of_a_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(**SCORED)
    assert answer.top_logprobs == 2
    Response.model_validate(answer.model_dump(by_alias=True), strict=True)
    chat = await client.chat.completions.create(
        model="emulated",
        messages=[{"role": "user", "content": SCORED["input"]}],
        max_completion_tokens=12,
        logprobs=True,
        top_logprobs=2,
    )
    expected = chat.choices[0].logprobs
    assert expected is not None and expected.content is not None and len(expected.content) == 12
    assert scores(answer) == [each.model_dump() for each in expected.content]
    assert await client.responses.retrieve(answer.id) == answer


@pytest.mark.parametrize("more", [{}, {"tools": [TOOL], "tool_choice": "none"}])
async def test_the_events_of_a_stream_have_each_score_once(
    client: openai.AsyncOpenAI, more: dict[str, Any]
) -> None:
    whole = await client.responses.create(**SCORED | more)
    stream = await client.responses.create(**SCORED | more, stream=True, background=True)
    events = [event async for event in stream]
    (done,) = (event for event in events if event.type == "response.output_text.done")
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    last: Any = events[-1]
    assert scores(last.response) == scores(whole) != []
    assert [each.token for each in done.logprobs] == [each["token"] for each in scores(whole)]
    sent = [each.model_dump() for event in deltas for each in event.logprobs]
    assert sent == [each.model_dump() for each in done.logprobs][: len(sent)] != []
    assert all(len(each["top_logprobs"]) == 2 for each in sent)
    for after in {deltas[0].sequence_number, deltas[len(deltas) // 2].sequence_number}:
        stream = await client.responses.retrieve(
            last.response.id, stream=True, starting_after=after, include=["message.output_text.logprobs"]
        )
        rest: list[Any] = [event async for event in stream]
        assert scores(rest[-1].response) == scores(whole)
        again = [event for event in rest if event.type == "response.output_text.delta"]
        before = [event for event in deltas if event.sequence_number <= after]
        assert [each.model_dump() for event in (*before, *again) for each in event.logprobs] == sent


async def test_without_being_asked_for_there_are_none(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(**{**SCORED, "include": [], "top_logprobs": 0})
    assert (answer.top_logprobs, scores(answer)) == (0, [])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"include": []}, "expected it with include"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": ["message.input_image.image_url"]}, "include"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    client: openai.AsyncOpenAI, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        await client.responses.create(**SCORED | fields)

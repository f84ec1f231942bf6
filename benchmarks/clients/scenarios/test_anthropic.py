"""Anthropic's SDK: messages whole and streamed, tools, JSON by schema, token counts, errors."""

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import pydantic
import pytest

TOOL: Any = {
    "name": "weather",
    "description": "Weather of a town.",
    "input_schema": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
}
ASKED: Any = [{"role": "user", "content": "Will it rain in Ulm?"}]


class Place(pydantic.BaseModel):
    """Schema of structured answers."""

    town: str
    people: int


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_every_option_of_a_message(client: anthropic.Anthropic, model: str) -> None:
    answer = client.messages.create(
        model=model,
        max_tokens=8,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": "Go on"},
        ],
        metadata={"user_id": "ann"},
        service_tier="auto",
        stop_sequences=["END"],
        extra_body={"temperature": 0.5, "top_k": 5, "top_p": 0.9},
    )
    assert (answer.role, answer.stop_reason) == ("assistant", "max_tokens")
    assert answer.usage.output_tokens == 8
    assert answer._request_id


def test_streams(client: anthropic.Anthropic, model: str) -> None:
    with client.messages.stream(model=model, max_tokens=12, messages=ASKED) as stream:
        text = "".join(stream.text_stream)
        answer = stream.get_final_message()
    assert text == answer.content[0].text
    assert answer.usage.output_tokens == 12


def test_the_asynchronous_client(url: str, model: str) -> None:
    assert asyncio.run(streamed(url, model)) == 12


async def streamed(url: str, model: str) -> int:
    async with (
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client,
        client.messages.stream(model=model, max_tokens=12, messages=ASKED) as stream,
    ):
        return (await stream.get_final_message()).usage.output_tokens


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
@pytest.mark.parametrize("stream", [False, True])
def test_tools(client: anthropic.Anthropic, model: str, choice: Any, stream: bool) -> None:
    options: Any = {"model": model, "max_tokens": 100, "tools": [TOOL], "messages": ASKED}
    if stream:
        with client.messages.stream(**options, tool_choice=choice) as events:
            answer = events.get_final_message()
    else:
        answer = client.messages.create(**options, tool_choice=choice)
    assert answer.stop_reason == "tool_use"
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert (call.name, call.input.keys()) == ("weather", {"town"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain", "is_error": False}
    history = [
        *ASKED,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    later = client.messages.create(model=model, max_tokens=5, tools=[TOOL], messages=history)
    assert later.usage.output_tokens <= 5


def test_parsed_messages(client: anthropic.Anthropic, model: str) -> None:
    answer = client.messages.parse(model=model, max_tokens=200, messages=ASKED, output_format=Place)
    assert isinstance(answer.parsed_output, Place)


def test_token_counts(client: anthropic.Anthropic, model: str) -> None:
    counted = client.messages.count_tokens(model=model, messages=ASKED, system="Be brief.")
    answer = client.messages.create(model=model, messages=ASKED, system="Be brief.", max_tokens=1)
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_models(client: anthropic.Anthropic, model: str) -> None:
    assert model in [each.id for each in client.models.list()]
    assert client.models.retrieve(model).id == model


def test_errors_have_their_classes(client: anthropic.Anthropic, model: str) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(model="none", max_tokens=5, messages=ASKED)
    assert caught.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(model=model, max_tokens=0, messages=ASKED)
    image: Any = {"type": "image", "source": {"type": "url", "url": "https://127.0.0.1/cat.png"}}
    with pytest.raises(anthropic.BadRequestError, match="image"):
        client.messages.create(model=model, max_tokens=5, messages=[{"role": "user", "content": [image]}])
    with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
        long = [{"role": "user", "content": "x " * 200_000}]
        client.messages.create(model=model, max_tokens=5, messages=long)

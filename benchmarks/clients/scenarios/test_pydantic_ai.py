"""Pydantic AI: agents with tools and with typed output, over chat completions and over responses."""

import asyncio
from typing import Any

import pydantic
import pytest
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Place(pydantic.BaseModel):
    """Schema of structured answers."""

    town: str
    people: int


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
def engine(request: pytest.FixtureRequest, url: str, model: str) -> Any:
    return request.param(model, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))


def test_text(engine: Any) -> None:
    done = Agent(engine, instructions="Be brief.").run_sync(
        "Hi", model_settings={"max_tokens": 20, "seed": 1}
    )
    assert done.output
    assert done.usage.output_tokens


@pytest.mark.parametrize("kind", [ToolOutput, NativeOutput])
def test_typed_output(engine: Any, kind: Any) -> None:
    assert isinstance(Agent(engine, output_type=kind(Place)).run_sync("Ulm").output, Place)


def test_a_conversation_goes_on(engine: Any) -> None:
    agent = Agent(engine)
    first = agent.run_sync("Hi", model_settings={"max_tokens": 10})
    later = agent.run_sync("And?", message_history=first.all_messages(), model_settings={"max_tokens": 10})
    assert len(later.all_messages()) == 4


def test_tools_are_called(engine: Any) -> None:
    agent = Agent(engine)
    called = []

    @agent.tool_plain
    def look_up(town: str) -> str:
        called.append(town)
        return "rain"

    done = agent.run_sync("Please call the tool look_up.", model_settings={"max_tokens": 100})
    assert len(called) == 1
    assert done.output


def test_streams(engine: Any) -> None:
    asyncio.run(streamed(engine))


async def streamed(engine: Any) -> None:
    async with Agent(engine).run_stream("Hi", model_settings={"max_tokens": 20}) as run:
        pieces = [each async for each in run.stream_text(delta=True)]
    assert "".join(pieces)
    async with Agent(engine, output_type=ToolOutput(Place, strict=True)).run_stream("Ulm") as run:
        assert isinstance(await run.get_output(), Place)


def test_errors(engine: Any, url: str) -> None:
    other = type(engine)("none", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    with pytest.raises(ModelHTTPError) as caught:
        Agent(other).run_sync("Hi")
    assert caught.value.status_code == 404


@pytest.mark.skip("an emulated model takes no schema from a prompt")
def test_prompted_output(engine: Any) -> None:
    assert Agent(engine, output_type=PromptedOutput(Place)).run_sync("Ulm").output

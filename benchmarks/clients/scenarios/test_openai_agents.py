"""OpenAI's Agents SDK: runs with tools and with typed output, over responses and over chat completions."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)

set_tracing_disabled(True)


class Place(pydantic.BaseModel):
    """Schema of structured answers."""

    town: str
    people: int


@function_tool
def weather(town: str) -> str:
    """Weather of a town."""
    return f"rain in {town}"


@pytest.fixture(params=[OpenAIResponsesModel, OpenAIChatCompletionsModel])
def engine(request: pytest.FixtureRequest, url: str, model: str) -> Iterator[Any]:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    yield request.param(model=model, openai_client=client)


def run(agent: Agent, text: str) -> Any:
    return asyncio.run(Runner.run(agent, text, max_turns=4))


def test_text(engine: Any) -> None:
    settings = ModelSettings(max_tokens=2000, temperature=0.5, top_p=0.9, store=False, metadata={"a": "b"})
    done = run(Agent(name="a", instructions="Be brief.", model=engine, model_settings=settings), "Hi")
    assert done.final_output


def test_tools_are_called(engine: Any) -> None:
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    agent = Agent(name="a", model=engine, tools=[weather], model_settings=settings)
    done = run(agent, "Ulm")  # after a call, the runner sets `tool_choice` back
    assert "tool_call_output_item" in [item.type for item in done.new_items]
    assert done.final_output


def test_typed_output(engine: Any) -> None:
    assert isinstance(run(Agent(name="a", model=engine, output_type=Place), "Ulm").final_output, Place)


def test_handoffs(engine: Any) -> None:
    other = Agent(name="other", model=engine)
    settings = ModelSettings(tool_choice="required")
    done = run(Agent(name="first", model=engine, handoffs=[other], model_settings=settings), "Hi")
    assert done.last_agent.name == "other"


def test_streams(engine: Any) -> None:
    async def streamed() -> Any:
        settings = ModelSettings(tool_choice="required", include_usage=True)
        agent = Agent(name="a", model=engine, tools=[weather], model_settings=settings)
        done = Runner.run_streamed(agent, "Ulm", max_turns=4)
        kinds = [event.type async for event in done.stream_events()]
        return done, kinds

    done, kinds = asyncio.run(streamed())
    assert "raw_response_event" in kinds
    assert "tool_call_output_item" in [item.type for item in done.new_items]
    assert done.context_wrapper.usage.output_tokens > 0


def test_errors(engine: Any) -> None:
    settings = ModelSettings(extra_body={"no_such_field": 1})
    with pytest.raises(openai.BadRequestError, match="no_such_field"):
        run(Agent(name="a", model=engine, model_settings=settings), "Hi")

"""Instructor: structured answers in each mode for OpenAI's interface, whole, partial, and many."""

import asyncio
from typing import Any

import instructor
import openai
import pydantic
import pytest

MODES = [
    instructor.Mode.TOOLS,
    instructor.Mode.TOOLS_STRICT,
    instructor.Mode.JSON_SCHEMA,
    instructor.Mode.RESPONSES_TOOLS,
]
ASKED: Any = [{"role": "user", "content": "Ulm"}]


class Place(pydantic.BaseModel):
    """Schema of structured answers."""

    town: str
    people: int


def connected(url: str, mode: instructor.Mode) -> Any:
    return instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none"), mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_modes(url: str, model: str, mode: instructor.Mode) -> None:
    client = connected(url, mode)
    made = client.create(model=model, response_model=Place, max_retries=1, messages=ASKED)
    assert isinstance(made, Place)


@pytest.mark.parametrize("mode", [instructor.Mode.JSON, instructor.Mode.MD_JSON])
def test_modes_without_a_schema(url: str, model: str, mode: instructor.Mode) -> None:
    answer = connected(url, mode).chat.completions.create(
        model=model, response_model=None, messages=ASKED, response_format={"type": "json_object"}
    )
    assert answer.choices[0].message.content


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA])
def test_partial_answers(url: str, model: str, mode: instructor.Mode) -> None:
    parts = list(connected(url, mode).create_partial(model=model, response_model=Place, messages=ASKED))
    assert isinstance(parts[-1].people, int)


def test_many_answers(url: str, model: str) -> None:
    client = connected(url, instructor.Mode.TOOLS)
    made = list(client.create_iterable(model=model, response_model=Place, messages=ASKED))
    assert all(isinstance(each, Place) for each in made)


def test_with_completion(url: str, model: str) -> None:
    client = connected(url, instructor.Mode.TOOLS)
    place, raw = client.create_with_completion(model=model, response_model=Place, messages=ASKED)
    assert isinstance(place, Place)
    assert raw.usage.total_tokens > 0


def test_asynchronous(url: str, model: str) -> None:
    client = instructor.from_openai(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none"))
    made = asyncio.run(client.create(model=model, response_model=Place, messages=ASKED))
    assert isinstance(made, Place)

"""Reasoning on a real vLLM through evictions and kill -9 of QLM or its render tier: equal to vLLM's own."""

from collections.abc import Iterator
from typing import Any

import pytest

from support.follower import answered, follow_through_eviction, follow_through_kill, qlm_at
from support.qlm_process import QlmProcess
from support.vllm_cpu import VllmOptions, VllmServer, running_vllm, tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.alone, pytest.mark.timeout(400)]

PARSER = ("--reasoning-parser", "deepseek_r1")
TALL = {"type": "object", "properties": {"tall": {"type": "boolean"}}, "required": ["tall"]}
BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "How tall is it? Please think first."}],
    "temperature": 0,
    "max_tokens": 600,
}
BY_SCHEMA: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "tall", "schema": TALL}}
}


@pytest.fixture(scope="module")
def engine() -> Iterator[VllmServer]:
    """A vLLM with a parser of reasoning, and a model that reasons."""
    with running_vllm(VllmOptions(model=tiny_model(kind="talks"), extra_args=PARSER)) as server:
        yield server


@pytest.fixture(scope="module")
def qlm(engine: VllmServer) -> Iterator[QlmProcess]:
    """QLM with a render tier of its own that has the same parser."""
    render = {"extra_args": list(PARSER), "reasons": True}
    with qlm_at(engine, tiny_model(kind="talks"), render) as process:
        yield process


def test_the_model_reasons_and_then_answers(engine: VllmServer) -> None:
    message = choice_of(engine.base_url, BODY)["message"]
    assert len(message["reasoning"].split()) > 50
    assert len(message["content"].split()) > 50
    answer = choice_of(engine.base_url, BODY | BY_SCHEMA)["message"]
    assert (len(answer["reasoning"].split()) > 50, answer["content"]) == (True, '{"tall":true}')


@pytest.mark.parametrize("fields", [{}, BY_SCHEMA], ids=["text", "schema"])
def test_a_whole_answer_is_the_engines_own(
    qlm: QlmProcess, engine: VllmServer, fields: dict[str, Any]
) -> None:
    expected, got = choice_of(engine.base_url, BODY | fields), choice_of(qlm.url, BODY | fields)
    assert expected["message"]["reasoning"] == got["message"]["reasoning"]
    assert expected["message"]["content"] == got["message"]["content"]
    assert expected["finish_reason"] == got["finish_reason"]


@pytest.mark.parametrize("fields", [{}, BY_SCHEMA], ids=["text", "schema"])
@pytest.mark.parametrize("killed", ["render tier", "qlm"])
def test_a_stream_goes_on_to_the_engines_own_answer(
    qlm: QlmProcess, engine: VllmServer, killed: str, fields: dict[str, Any]
) -> None:
    follow_through_kill(qlm, engine, BODY | fields, killed)


def test_reasoning_that_is_evicted_is_the_engines_own(qlm: QlmProcess, engine: VllmServer) -> None:
    follow_through_eviction(qlm, engine, BODY)


def choice_of(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the choice of a whole answer."""
    (choice,) = answered(url, body)["choices"]
    return dict(choice)

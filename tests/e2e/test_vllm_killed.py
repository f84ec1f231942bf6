"""Streams on a real vLLM through evictions and kill -9 of QLM or its render tier: equal to vLLM's own."""

from collections.abc import Iterator
from typing import Any

import pytest

from support.follower import follow_through_eviction, follow_through_kill, qlm_at
from support.qlm_process import QlmProcess
from support.vllm_cpu import VllmServer, tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.alone, pytest.mark.timeout(400)]

LIST = {"type": "array", "items": {"type": "integer"}, "minItems": 200, "maxItems": 300}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "How is the weather?"}],
    "temperature": 0,
    "max_tokens": 600,
    "ignore_eos": True,
}
TOOLS: dict[str, Any] = {"tools": [WEATHER]}
BY_SCHEMA: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "list", "schema": LIST}}
}
PENALTY: dict[str, Any] = {"presence_penalty": 0.8, "frequency_penalty": 0.3}


@pytest.fixture(scope="module")
def qlm(vllm_server: VllmServer) -> Iterator[QlmProcess]:
    """QLM with a render tier of its own, at an engine that outlives it."""
    render = {"extra_args": ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]}
    with qlm_at(vllm_server, tiny_model(), render) as process:
        yield process


@pytest.mark.parametrize(
    ("killed", "fields"),
    [("render tier", TOOLS), ("qlm", TOOLS), ("qlm", BY_SCHEMA), ("qlm", PENALTY)],
    ids=["render-tools", "qlm-tools", "qlm-schema", "qlm-penalty"],
)
def test_a_stream_goes_on_to_the_engines_own_answer(
    qlm: QlmProcess, vllm_server: VllmServer, killed: str, fields: dict[str, Any]
) -> None:
    follow_through_kill(qlm, vllm_server, BODY | fields, killed)


def test_a_stream_with_tools_that_is_evicted_is_the_engines_own(
    qlm: QlmProcess, vllm_server: VllmServer
) -> None:
    follow_through_eviction(qlm, vllm_server, BODY | TOOLS)

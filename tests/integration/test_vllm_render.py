"""Tools and JSON by schema through QLM, against what the same vLLM answers to the same request itself."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from support.qlm_process import QlmProcess, serving
from support.vllm_cpu import PYTHON, SCRIPTS, VllmServer, tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["rain", "sun"]},
        "days": {"type": "integer", "maximum": 99, "minimum": 1},
    },
    "required": ["kind", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
BY_NAME = {"type": "function", "function": {"name": "weather"}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
QUESTION: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "How is the weather?"}],
    "temperature": 0,
    "max_tokens": 30,
}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 20}
BODIES: dict[str, dict[str, Any]] = {
    "json by schema": {**QUESTION, "response_format": FORMAT, "max_tokens": 120},
    "a json object": {**QUESTION, "response_format": {"type": "json_object"}},
    "one of the choices": {**QUESTION, "structured_outputs": {"choice": ["yes", "no"]}},
    "a regular expression": {**QUESTION, "structured_outputs": {"regex": "[a-c]{5}"}},
    "a required tool": {**QUESTION, "tools": [WEATHER], "tool_choice": "required", "max_tokens": 120},
    "a named tool": {**QUESTION, "tools": [WEATHER], "tool_choice": BY_NAME, "max_tokens": 120},
    "the model's choice": {**QUESTION, "tools": [WEATHER]},
    "no tool": {**QUESTION, "tools": [WEATHER], "tool_choice": "none"},
    "its last message continued": {
        **QUESTION,
        "messages": [*QUESTION["messages"], {"role": "assistant", "content": "It will"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "a stop text beside tools": {**QUESTION, "tools": [WEATHER], "stop": ["e", " a", "o"]},
    "a stop text that stays": {
        **QUESTION,
        "tools": [WEATHER],
        "stop": ["e", "o"],
        "include_stop_str_in_output": True,
    },
    "a stop text that is not met": {
        **QUESTION,
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_tokens": 120,
        "stop": ["Observation:", "Calling tools:"],
    },
    "a stop text in a call": {
        **QUESTION,
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_tokens": 120,
        "stop": ["kind"],
    },
    "instructions of a developer": {
        **QUESTION,
        "messages": [*QUESTION["messages"], {"role": "developer", "content": "Be brief."}],
    },
    "special tokens": {**QUESTION, "add_special_tokens": True},
    "documents": {**QUESTION, "documents": [{"title": "Weather", "text": "It rains."}]},
}


@pytest.fixture(scope="module")
def qlm(vllm_server: VllmServer) -> Iterator[str]:
    """QLM on the shared engine, whose own render routes are the render tier."""
    model = {
        "id": "tiny",
        "engine": "vllm",
        "path": str(tiny_model()),
        "context_tokens": 2048,
        "render": {"url": vllm_server.base_url},
    }
    instance = {"id": "cpu", "accelerator": "CPU", "models": ["tiny"], "url": vllm_server.base_url}
    with serving({"models": [model], "instances": [{**instance, "seqs_max": 8}]}) as process:
        yield process.url


def whole(url: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=100)
    assert answer.status_code == 200, answer.text
    return comparable(answer.json())


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what has to be equal: all but random ids, and fields that are null or empty."""
    (choice,) = answer["choices"]
    message = {key: value for key, value in choice["message"].items() if value not in (None, [])}
    for call in message.get("tool_calls", ()):
        assert call.pop("id")
    usage = {name: answer["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    return {"message": message, "finish": choice["finish_reason"], "usage": usage}


def streamed(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Put a stream together to the form of `comparable`."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    answer: dict[str, Any] = {}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        for chunk in client.chat.completions.create(**body | options):
            answer["usage"] = chunk.usage and chunk.usage.model_dump()
            for choice in chunk.choices:
                answer["finish_reason"] = choice.finish_reason or answer.get("finish_reason")
                message["content"] += choice.delta.content or ""
                for part in choice.delta.tool_calls or ():
                    call = calls.setdefault(part.index, {"type": "function", "function": {"arguments": ""}})
                    if part.id:
                        call["id"] = part.id
                        call["function"]["name"] = part.function.name
                    call["function"]["arguments"] += part.function.arguments or ""
    message["tool_calls"] = [calls[index] for index in sorted(calls)]
    choices = [{"message": message, "finish_reason": answer["finish_reason"]}]
    return comparable({"choices": choices, "usage": answer["usage"]})


@pytest.mark.parametrize("case", BODIES)
def test_a_whole_answer_is_that_of_the_engine_itself(qlm: str, vllm_server: VllmServer, case: str) -> None:
    assert whole(qlm, BODIES[case]) == whole(vllm_server.base_url, BODIES[case])


def test_without_the_prompt_of_an_answer_it_still_is_the_assistants(
    qlm: str, vllm_server: VllmServer
) -> None:
    ours, theirs = (
        whole(url, QUESTION | {"add_generation_prompt": False}) for url in (qlm, vllm_server.base_url)
    )
    assert theirs["message"].pop("role") == "user", "vLLM takes the role of the last message"
    assert ours["message"].pop("role") == "assistant"
    assert ours == theirs


@pytest.mark.parametrize(
    "case",
    [
        "json by schema",
        "a required tool",
        "a named tool",
        "the model's choice",
        "a stop text beside tools",
        "a stop text that is not met",
    ],
)
def test_a_stream_is_that_of_the_engine_itself(qlm: str, vllm_server: VllmServer, case: str) -> None:
    assert streamed(qlm, BODIES[case]) == streamed(vllm_server.base_url, BODIES[case])


def test_a_grammar_that_the_engine_refuses_is_a_400(qlm: str) -> None:
    body = {**QUESTION, "structured_outputs": {"regex": "(("}}
    answer = httpx.post(f"{qlm}/v1/chat/completions", json=body, timeout=100)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "refused_by_engine"), answer.text


def test_json_fits_its_schema(qlm: str) -> None:
    answer = json.loads(whole(qlm, BODIES["json by schema"])["message"]["content"])
    assert answer["kind"] in ("rain", "sun")
    assert 1 <= answer["days"] <= 99


THOUGHT = {"regex": "Here is my thought process: [a-c]{9} Here is my response: [a-c]{5}"}


@pytest.fixture(scope="module")
def reasoning(vllm_server: VllmServer) -> Iterator[QlmProcess]:
    """QLM that starts a render tier of its own, with a parser of reasoning."""
    render = {"extra_args": ["--reasoning-parser", "granite"], "reasons": True}
    model = {"id": "tiny", "engine": "vllm", "path": str(tiny_model()), "context_tokens": 2048}
    instance = {"id": "cpu", "accelerator": "CPU", "models": ["tiny"], "url": vllm_server.base_url}
    config = {
        "models": [{**model, "render": render}],
        "instances": [{**instance, "seqs_max": 8}],
        "vllm": {"python": str(PYTHON), "pythonpath": str(SCRIPTS)},
    }
    with serving(config) as process:
        yield process


def test_a_render_tier_that_the_gateway_starts_separates_reasoning_from_text(reasoning: QlmProcess) -> None:
    body: dict[str, Any] = QUESTION | {"max_tokens": 60, "extra_body": {"structured_outputs": THOUGHT}}
    # While the render tier starts, the gateway answers 503 and asks for a retry.
    with openai.OpenAI(base_url=f"{reasoning.url}/v1", api_key="any", max_retries=200) as client:
        message = client.chat.completions.create(**body).choices[0].message
        thought, said = "", ""
        # This parser loses text of reasoning if a piece is too large; those of such a stream have fixed ends.
        fixed = {"x-qlm-stream": "resumable"}
        for chunk in client.chat.completions.create(**body, stream=True, extra_headers=fixed):
            delta = chunk.choices[0].delta.model_dump()
            thought, said = thought + (delta.get("reasoning") or ""), said + (delta["content"] or "")
        body["extra_body"]["include_reasoning"] = False
        scored = body | {"logprobs": True, "top_logprobs": 2}
        hidden = client.chat.completions.create(**scored).choices[0]
        assert hidden.logprobs is None
        for chunk in client.chat.completions.create(**scored, stream=True):
            assert chunk.choices[0].logprobs is None
    reasons = message.model_dump()["reasoning"]
    assert re.fullmatch("[a-c]{9}", reasons.strip())
    assert re.fullmatch("[a-c]{5}", (message.content or "").strip())
    # In a stream, this parser takes the beginning of its second mark for reasoning, and the end of its first
    # one where that does not end with a piece of the text.
    before, _, after = thought.partition(reasons.strip())
    assert "Here is my thought process: ".endswith(before)
    assert " Here is my response:".startswith(after)
    assert said.strip() == (message.content or "").strip()
    assert (hidden.message.content, hidden.message.model_dump().get("reasoning")) == (message.content, None)


SCORED: dict[str, tuple[str, dict[str, Any]]] = {
    "a chat": ("chat/completions", {**QUESTION, "logprobs": True, "top_logprobs": 3}),
    "a chat, its own tokens": ("chat/completions", {**QUESTION, "logprobs": True}),
    "a required tool": (
        "chat/completions",
        {**BODIES["a required tool"], "logprobs": True, "top_logprobs": 1},
    ),
    "a text": ("completions", {**TEXT, "logprobs": 3}),
    "a text, its own tokens": ("completions", {**TEXT, "logprobs": 0}),
    "drawn": ("completions", {**TEXT, "logprobs": 2, "temperature": 1.5, "seed": 3}),
    "with its prompt": ("completions", {**TEXT, "logprobs": 3, "echo": True}),
    "with its prompt, their own tokens": ("completions", {**TEXT, "logprobs": 0, "echo": True}),
    "with a prompt of several bytes a character": (
        "completions",
        {**TEXT, "prompt": "Größe: 你好", "logprobs": 2, "echo": True},
    ),
}


DRAWN = {"temperature": 1.0, "seed": 3}
FORMED: dict[str, dict[str, Any]] = {
    "json by schema": {"response_format": FORMAT, "max_tokens": 120},
    "a choice": {"structured_outputs": {"choice": ["yes", "no"]}},
    "two answers to each of two prompts": {"prompt": ["Once", "Twice"], "n": 2, "echo": True} | DRAWN,
}


@pytest.mark.parametrize("case", FORMED)
def test_a_completion_is_that_of_the_engine_itself(qlm: str, vllm_server: VllmServer, case: str) -> None:
    ours, theirs = (
        httpx.post(f"{url}/v1/completions", json={**TEXT, **FORMED[case]}, timeout=100).json()
        for url in (qlm, vllm_server.base_url)
    )
    assert [(each["index"], each["text"], each["finish_reason"]) for each in ours["choices"]] == [
        (each["index"], each["text"], each["finish_reason"]) for each in theirs["choices"]
    ]
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [ours["usage"][name] for name in names] == [theirs["usage"][name] for name in names]


@pytest.mark.parametrize("case", SCORED)
def test_log_probabilities_are_those_of_the_engine_itself(
    qlm: str, vllm_server: VllmServer, case: str
) -> None:
    path, body = SCORED[case]
    ours, theirs = (
        httpx.post(f"{url}/v1/{path}", json=body, timeout=100).json()["choices"][0]["logprobs"]
        for url in (qlm, vllm_server.base_url)
    )
    assert plain_of(ours) == plain_of(theirs)


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize("top", [0, 2])
def test_log_probabilities_of_prompts_are_those_of_the_engine_itself(
    qlm: str, vllm_server: VllmServer, path: str, top: int
) -> None:
    body = {**(QUESTION if "chat" in path else TEXT), "prompt_logprobs": top}
    ours, theirs = (
        httpx.post(f"{url}/v1/{path}", json=body, timeout=100).json() for url in (qlm, vllm_server.base_url)
    )
    found = [answer if "chat" in path else answer["choices"][0] for answer in (ours, theirs)]
    ours, theirs = (plain_of(each["prompt_logprobs"]) for each in found)
    assert ours == theirs
    assert len(ours) > 1


def plain_of(value: Any) -> Any:
    """Return log probabilities to four places: engines compute a batch of two otherwise than of one."""
    if isinstance(value, dict):
        return {key: plain_of(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [plain_of(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value

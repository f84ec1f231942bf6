"""Each request field of vLLM is honoured or refused by name, over HTTP and over gRPC."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict

from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.responses_api.body import NEUTRAL as RESPONSE
from qlm.gateway.api.responses_api.body import ResponseBody, parse_response
from qlm.gateway.api.responses_api.chat import as_chat
from qlm.gateway.api.schema import Body, ChatBody, parse_chat, parse_completion
from qlm.gateway.rpc import messages
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from scripts.reference_pages.request_fields import LISTED, OVER_GRPC, ROUTES, Treatment, treatment

TOOL = {"type": "function", "function": {"name": "f"}}
GOOD: dict[str, Any] = {
    "add_generation_prompt": False,
    "add_special_tokens": True,
    "background": True,
    "chat_template_kwargs": {"enable_thinking": False},
    "continue_final_message": True,
    "documents": [{"title": "Weather", "text": "It rains."}],
    "echo": True,
    "frequency_penalty": 0.5,
    "ignore_eos": True,
    "include": ["reasoning.encrypted_content"],
    "include_reasoning": False,
    "include_stop_str_in_output": True,
    "input": "Once",
    "instructions": "Be brief.",
    "logit_bias": {"7": 1.5},
    "max_completion_tokens": 9,
    "max_output_tokens": 9,
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Hi"}],
    "metadata": {"run": "7"},
    "min_p": 0.5,
    "min_tokens": 3,
    "model": "m",
    "n": 2,
    "parallel_tool_calls": False,
    "prompt_logprobs": 1,
    "presence_penalty": 0.5,
    "previous_response_id": "resp_1",
    "priority": 3,
    "prompt": "Once",
    "prompt_cache_key": "k",
    "reasoning": {"effort": "low"},
    "reasoning_effort": "low",
    "repetition_penalty": 1.5,
    "request_id": "mine",
    "response_format": {"type": "json_object"},
    "seed": 7,
    "service_tier": "flex",
    "skip_special_tokens": False,
    "stop": ["x"],
    "stop_token_ids": [5],
    "store": False,
    "stream": True,
    "stream_options": {"include_usage": True},
    "structured_outputs": {"regex": "a+"},
    "temperature": 0.5,
    "text": {"format": {"type": "json_object"}},
    "tool_choice": "required",
    "tools": [TOOL],
    "top_k": 5,
    "top_p": 0.5,
    "user": "team-a",
}
"""A value of each honoured field that is not its default."""

RESPONSE_TOOL = {"type": "function", "name": "f"}
LOGPROBS: dict[str, dict[str, Any]] = {
    "chat": {"logprobs": True, "top_logprobs": 2},
    "completion": {"logprobs": 2},
    "response": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
}
NEEDED = {
    "chat": {"messages": GOOD["messages"]},
    "completion": {"prompt": "Once"},
    "response": {"input": "Once"},
}
TOOLS = {"chat": [TOOL], "completion": [TOOL], "response": [RESPONSE_TOOL]}
PARSE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "chat": parse_chat,
    "completion": parse_completion,
    "response": parse_response,
}
FIELDS = [
    pytest.param(route, name, treatment(name, body, neutral), id=f"{route}-{name}")
    for route, body, neutral in ROUTES
    for name in LISTED[route]
]
KEPT = (Treatment.HONOURED, Treatment.RENDERED, Treatment.ACCEPTED)


def good(route: str, name: str) -> dict[str, Any]:
    """Return a body in which a field has a value that counts."""
    given = LOGPROBS[route] if name in LOGPROBS[route] else {name: GOOD[name]}
    beside = {"tools": TOOLS[route]} if name in ("tools", "tool_choice", "parallel_tool_calls") else {}
    given = beside if name == "tools" else given
    return {**NEEDED[route], **beside, **given}


def over_grpc(route: str, further: Mapping[str, Any]) -> Body:
    """Send fields over gRPC: those with a place of their own there, the others in `more`."""
    plain = {**NEEDED[route], **further}
    own = {
        name: plain.pop(name) for name in list(plain) if name in pb.GenerateRequest.DESCRIPTOR.fields_by_name
    }
    if "messages" in own:
        own["messages"] = {"messages": own["messages"]}
    request = ParseDict({**own, "more": plain}, pb.GenerateRequest())
    return messages.parse(request, messages.to_plain(request))


@pytest.mark.parametrize(("route", "name", "treated"), FIELDS)
def test_each_field_of_vllm_counts_or_is_refused_by_name(route: str, name: str, treated: Treatment) -> None:
    if treated in KEPT:
        body = PARSE[route](good(route, name))
        assert name in body.model_fields_set
        assert getattr(body, name) != type(body).model_fields[name].default
        return
    for value in ({"not": "neutral"}, "x", -77):
        with pytest.raises(ApiError) as caught:
            PARSE[route]({**NEEDED[route], name: value})
        assert (caught.value.status, caught.value.param) == (400, name)
    assert PARSE[route]({**NEEDED[route], name: None})


@pytest.mark.parametrize(
    ("route", "name", "treated"), [each for each in FIELDS if each.values[0] in OVER_GRPC]
)
def test_grpc_has_each_field_of_http_or_refuses_it_by_name(route: str, name: str, treated: Treatment) -> None:
    if treated in KEPT and name not in messages.OF_HTTP_ANSWERS:
        sent = {
            each: value for each, value in good(route, name).items() if each not in messages.OF_HTTP_ANSWERS
        }
        ours, theirs = over_grpc(route, sent), PARSE[route](sent)
        assert getattr(ours, name) == getattr(theirs, name)
        return
    value = good(route, name)[name] if treated in KEPT else {"not": "neutral"}
    with pytest.raises(ApiError) as caught:
        over_grpc(route, {name: value})
    assert (caught.value.status, caught.value.param) == (400, name)


SHARED = [
    name
    for name in LISTED["response"]
    if treatment(name, ResponseBody, RESPONSE) in (Treatment.HONOURED, Treatment.RENDERED)
    and name in ChatBody.model_fields
    and name not in ("metadata", "store", "tool_choice", "tools", "top_logprobs")
]


@pytest.mark.parametrize("name", SHARED)
def test_a_field_that_a_response_and_a_chat_have_is_in_its_chat(name: str) -> None:
    plain = good("response", name)
    assert as_chat(parse_response(plain), plain, [])[name] == GOOD[name]


def test_a_field_that_grpc_has_itself_is_refused_in_more() -> None:
    request = ParseDict({"prompt": "Once", "more": {"seed": 7}}, pb.GenerateRequest())
    with pytest.raises(ApiError) as caught:
        messages.to_plain(request)
    assert (caught.value.status, caught.value.param) == (400, "seed")

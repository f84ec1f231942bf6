"""The response object of the Responses API, and its output items."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from qlm.domain.ids import RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.request import NS_PER_S, RequestMetadata
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.fields.openai import AnswerMessage
from qlm.gateway.api.fields.responses_api import OutputItem, ResponseObject, ResponseUsage
from qlm.gateway.api.ids import RESPONSE_PREFIX
from qlm.gateway.api.responses_api.state import ResponseState
from qlm.gateway.api.responses_api.tools import ToolNames
from qlm.gateway.core.session_events import SendFinal

Scores = Sequence[Mapping[str, Any]]
"""Log probabilities of tokens, each as in the content of a chat's."""

_ID_CHARACTERS: Final = 32
_PREFIXES: Final = {
    "message": "msg_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "reasoning": "rs_",
}


def item_id(id: RequestId, kind: str, index: int) -> str:
    """Return the id of an item of the output: the same at each gateway, streamed or whole.

    A client may send it in place of the item, so it has the request.
    """
    return f"{_PREFIXES[kind]}{id}_{index}"


def response_of_item(id: str) -> str:
    """Return the id of the response that an item of an output is of; of any other text, one of none."""
    return f"{RESPONSE_PREFIX}{id.partition('_')[2].rpartition('_')[0]}"


def input_item_id(id: RequestId, kind: str, index: int) -> str:
    """Return the id of an item of the input that came without one: the same at each gateway."""
    digest = hashlib.sha256(f"{id}/input/{kind}/{index}".encode()).hexdigest()
    return _PREFIXES[kind] + digest[:_ID_CHARACTERS]


def reasoning_item(id: str, text: str, status: str = "completed") -> OutputItem:
    """Return an item with reasoning."""
    content = [{"type": "reasoning_text", "text": text}] if text else []
    item = {"id": id, "type": "reasoning", "summary": [], "content": content, "status": status}
    return cast("OutputItem", item)


def text_part(text: str, logprobs: Scores = ()) -> dict[str, Any]:
    """Return a part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def message_item(id: str, parts: Sequence[Mapping[str, Any]], status: str = "completed") -> OutputItem:
    """Return an item with the text of the answer."""
    item = {"id": id, "type": "message", "role": "assistant", "content": parts, "status": status}
    return cast("OutputItem", item)


def call_item(
    id: str, call_id: str, name: Mapping[str, str], arguments: str, status: str = "completed"
) -> OutputItem:
    """Return an item with the call of a tool, whose `name` may have a `namespace`."""
    called = {"call_id": call_id, **name, "arguments": arguments}
    return cast("OutputItem", {"id": id, "type": "function_call", **called, "status": status})


def output_items(
    id: RequestId, message: AnswerMessage, names: ToolNames, status: str, logprobs: Scores = ()
) -> list[OutputItem]:
    """Return the items of a whole answer; the last one has the status of the answer.

    Its text has the log probabilities of all tokens of the answer, as in vLLM.
    """
    items = list(_items(id, message, names, logprobs))
    items[-1]["status"] = status
    return items


def _items(id: RequestId, message: AnswerMessage, names: ToolNames, logprobs: Scores) -> Iterator[OutputItem]:
    index = 0
    reasoning, calls = message.get("reasoning"), message.get("tool_calls", ())
    if reasoning:
        yield reasoning_item(item_id(id, "reasoning", index), reasoning)
        index += 1
    if (text := message["content"]) or not (reasoning or calls):
        yield message_item(item_id(id, "message", index), [text_part(text or "", logprobs)])
        index += 1
    for place, call in enumerate(calls):
        called = call["function"]
        yield call_item(
            item_id(id, "function_call", index + place),
            *(call.get("id", ""), names.of_call(called.get("name", "")), called.get("arguments", "")),
        )


def response_usage(metadata: RequestMetadata, final: SendFinal) -> ResponseUsage:
    """Return token counts; those of reasoning are not counted apart."""
    return {
        "input_tokens": metadata.prompt_tokens,
        "input_tokens_details": {"cached_tokens": final.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": final.offset,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": metadata.prompt_tokens + final.offset,
    }


def ended_status(final: SendFinal) -> str:
    """Return the status of a response that has ended."""
    if final.outcome.ok:
        return "incomplete" if final.finish_reason == "length" else "completed"
    return "cancelled" if final.outcome is Outcome.CANCELLED else "failed"


def response_object(
    metadata: RequestMetadata,
    state: ResponseState,
    tier: str,
    status: str,
    *,
    output: Sequence[OutputItem] = (),
    usage: ResponseUsage | None = None,
    error: ApiError | None = None,
) -> ResponseObject:
    """Return a response; `error` is why it failed."""
    fields = state.fields
    text = {"format": {"type": "text"}, **(fields.get("text") or {})}
    reasoning = {"effort": None, "summary": None, **(fields.get("reasoning") or {})}
    failure = (
        None if error is None or status == "cancelled" else {"code": "server_error", "message": str(error)}
    )
    reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
    return cast(
        "ResponseObject",
        {
            "id": response_id(metadata.id),
            "object": "response",
            "created_at": metadata.arrival_ns // NS_PER_S,
            "status": status,
            "background": state.background,
            "error": failure,
            "incomplete_details": reason,
            "instructions": fields.get("instructions"),
            "max_output_tokens": fields.get("max_output_tokens"),
            "max_tool_calls": None,
            "metadata": fields.get("metadata") or {},
            "model": metadata.answers_as,
            "output": output,
            "parallel_tool_calls": fields.get("parallel_tool_calls", True),
            "previous_response_id": fields.get("previous_response_id"),
            "prompt_cache_key": fields.get("prompt_cache_key"),
            "reasoning": reasoning,
            "safety_identifier": fields.get("safety_identifier"),
            "service_tier": tier,
            "store": state.stored,
            "temperature": metadata.sampling.temperature,
            "text": text,
            "tool_choice": fields.get("tool_choice", "auto"),
            "tools": fields.get("tools") or [],
            "top_logprobs": fields.get("top_logprobs") or 0,
            "top_p": metadata.sampling.top_p,
            "truncation": "disabled",
            "usage": usage,
            "user": fields.get("user"),
        },
    )


def response_id(id: RequestId) -> str:
    """Return the id of the response of a request."""
    return f"{RESPONSE_PREFIX}{id}"

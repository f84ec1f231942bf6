"""A response as a chat: the conversation, and the fields of a chat that say the same."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from qlm.gateway.api.errors import invalid, shown
from qlm.gateway.api.responses_api.body import ResponseBody, TextFormat
from qlm.gateway.api.responses_api.items import as_items, chat_messages
from qlm.gateway.api.responses_api.tools import ToolNames, offered

_SAME: Final = (
    "model",
    "stream",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "stop",
    "stop_token_ids",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "include_reasoning",
    "logit_bias",
    "structured_outputs",
    "chat_template_kwargs",
    "user",
    "service_tier",
    "priority",
    "slo",
    "resume_grace_s",
)
"""Fields that mean the same in a chat."""

NAMES: Final[Mapping[str, str]] = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "structured_outputs": "structured_outputs",
}
"""Names of fields of a chat in a response."""


def as_chat(
    body: ResponseBody, plain: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the body of the chat that answers a response.

    Args:
        body: The checked body.
        plain: The same as received.
        earlier: Messages of the conversation that it continues.

    Raises:
        ApiError: An item of the input is wrong or not supported.
    """
    first = [] if body.instructions is None else [{"role": "system", "content": body.instructions}]
    tools = list(offered(body.tools or ()))
    asked = {
        "messages": [*first, *earlier, *chat_messages(as_items(body.input))],
        "max_completion_tokens": body.max_output_tokens,
        "tools": tools,
        "tool_choice": _tool_choice(body.tool_choice, tools, ToolNames(plain.get("tools") or ())),
        "response_format": _response_format(body.text.format if body.text else None),
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        **({"logprobs": True, "top_logprobs": body.top_logprobs or 0} if body.scored else {}),
    }
    same = {name: plain[name] for name in _SAME if plain.get(name) is not None}
    return same | {name: value for name, value in asked.items() if value not in (None, [])}


def _tool_choice(choice: Any, tools: Sequence[Mapping[str, Any]], names: ToolNames) -> Any:
    if not tools and choice not in (None, "auto", "none"):
        raise invalid("tool_choice", f"tool_choice is {shown(choice)}; expected it with tools to call")
    if not isinstance(choice, dict):
        return choice if tools else None
    name = names.chosen(choice["name"], choice.get("namespace"))
    return {"type": "function", "function": {"name": name}}


def _response_format(form: TextFormat | None) -> dict[str, Any] | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "json_object"}
    schema = {
        "name": form.name,
        "schema": form.schema_,
        "description": form.description,
        "strict": form.strict,
    }
    return {
        "type": "json_schema",
        "json_schema": {key: each for key, each in schema.items() if each is not None},
    }

"""A body of Anthropic's API as a chat that says the same."""

from collections.abc import Mapping
from typing import Any, Final

from qlm.gateway.api.errors import invalid
from qlm.gateway.api.messages_api.blocks import as_blocks, chat_messages, system_messages
from qlm.gateway.api.messages_api.body import (
    CountBody,
    MessagesBody,
    MessagesTool,
    MessagesToolChoice,
    OutputConfig,
)

_SAME: Final = ("model", "max_tokens", "stream", "temperature", "top_p", "top_k", "priority", "slo")
"""Fields that mean the same in a chat."""

NAMES: Final[Mapping[str, str]] = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
"""Names of fields of a chat in a body of this API."""


def as_chat(body: MessagesBody | CountBody, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a chat; `plain` is the body as received.

    Raises:
        ApiError: A message is wrong or not supported.
    """
    system = [] if body.system in (None, []) else as_blocks(body.system, "system")
    first = system_messages(system, "system")
    asked: dict[str, Any] = {
        "messages": [*first, *chat_messages(body.messages)],
        "tools": [_tool(each) for each in body.tools or ()],
        "stop": body.stop_sequences if isinstance(body, MessagesBody) else None,
        **_choice(body.tool_choice),
        **_output(body.output_config),
    }
    same = {name: plain[name] for name in _SAME if plain.get(name) is not None}
    return same | {name: value for name, value in asked.items() if value not in (None, [])}


def _tool(tool: MessagesTool) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
    }
    function |= {"strict": tool.strict}
    return {
        "type": "function",
        "function": {name: each for name, each in function.items() if each is not None},
    }


def _choice(choice: MessagesToolChoice | None) -> dict[str, Any]:
    if choice is None:
        return {}
    parallel = {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    if choice.type != "tool":
        return {"tool_choice": "required" if choice.type == "any" else choice.type, **parallel}
    if choice.name is None:
        message = "tool_choice.name is missing; expected the name of a tool, since its type is tool"
        raise invalid("tool_choice.name", message, "missing_required_parameter")
    return {"tool_choice": {"type": "function", "function": {"name": choice.name}}, **parallel}


def _output(config: OutputConfig | None) -> dict[str, Any]:
    if config is None:
        return {}
    asked: dict[str, Any] = {"reasoning_effort": config.effort}
    if config.format is not None:
        schema = {"name": "answer", "schema": config.format.schema_}
        asked["response_format"] = {"type": "json_schema", "json_schema": schema}
    return asked

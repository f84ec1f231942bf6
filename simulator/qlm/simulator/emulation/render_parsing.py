"""Prompts and messages of emulated models with tools.

An emulated model is asked for a tool call by the JSON schema with which vLLM asks (`tool_choice` required: a
list of `{"name", "parameters"}`; a named tool: its parameters). `engine.answers.constrained` answers that.
Where the model may choose, it calls the tool that its user asks for with `call the tool NAME`, so that agents
can be tried.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from qlm.domain.byte_tokens import EOS_ID
from qlm.simulator.emulation.media import item_text
from qlm.simulator.emulation.vllm_requests import VllmApiError

_CALL: Final = re.compile(r'\[\{"name": "([^"]*)", "parameters": (.*)', re.DOTALL)
_CALL_END: Final = "}]"
_NAMED_TOOL: Final = re.compile(r"\bcall the tool [`\"']?([\w.-]*\w)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Message:
    """An answer, or its beginning.

    Attributes:
        content: Its text.
        tool: Name of the tool that it calls; None for no call.
        arguments: JSON text of the call's arguments.
    """

    content: str = ""
    tool: str | None = None
    arguments: str = ""


def prompt_text(request: Mapping[str, Any]) -> str:
    """Return the prompt of a conversation: lines `role: content`, documents, tools and their calls as JSON.

    Raises:
        VllmApiError: The request contradicts itself.
    """
    continues, begins = request.get("continue_final_message"), request.get("add_generation_prompt", True)
    if continues and begins:
        message = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        raise VllmApiError(400, message, param="continue_final_message")
    lines = []
    if documents := request.get("documents"):
        lines.append(f"documents: {json.dumps(documents)}\n")
    if request.get("tools") and request.get("tool_choice") != "none":
        lines.append(f"tools: {json.dumps(request['tools'])}\n")
    for each in request["messages"]:
        text = _plain(each.get("content"))
        calls = f" {json.dumps(each['tool_calls'])}" if each.get("tool_calls") else ""
        lines.append(f"{each['role']}: {text}{calls}\n")
    text = "".join((*lines, "assistant:") if begins else lines)
    return text.removesuffix("\n") if continues else text


def constraint_of(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return `structured_outputs` of a request; None without.

    Raises:
        VllmApiError: The request contradicts itself.
    """
    tools = {each["function"]["name"]: each["function"] for each in request.get("tools") or ()}
    choice = request.get("tool_choice")
    if choice not in (None, "none") and not tools:
        raise VllmApiError(400, "When using `tool_choice`, `tools` must be set.", param="tool_choice")
    if isinstance(choice, dict):
        return {"json": _parameters(_named(tools, choice))}
    if choice == "required":
        items = {"anyOf": [_call(each) for each in tools.values()]}
        return {"json": {"type": "array", "minItems": 1, "items": items}}
    if choice not in (None, "none", "auto"):
        raise VllmApiError(400, f"Invalid value for `tool_choice`: {choice}!", param="tool_choice")
    if choice != "none" and (wanted := _named_by_user(request["messages"])) in tools:
        return {"json": {"type": "array", "minItems": 1, "items": _call(tools[wanted])}}
    return _response_format(request.get("response_format")) or request.get("structured_outputs")


def message_of(ids: Sequence[int], request: Mapping[str, Any], *, ended: bool) -> Message:
    """Return the message of an answer, or as much of it as no later token can change."""
    data = bytes(each for each in ids if each < EOS_ID)
    text = data.decode(errors="replace" if ended else "ignore")
    choice = request.get("tool_choice")
    if isinstance(choice, dict):
        return Message("", choice["function"]["name"], text)
    if choice == "none" or (choice != "required" and not _calls(text, request, ended=ended)):
        return Message(text)
    found = _CALL.match(text)
    if found is None:
        return Message()
    name, arguments = found.groups()
    if not ended:
        return Message("", name, arguments[: -len(_CALL_END)])
    return Message("", name, arguments.removesuffix(_CALL_END))


def _calls(text: str, request: Mapping[str, Any], *, ended: bool) -> bool:
    """Return whether an answer calls a tool of its request, or still may."""
    names = [each["function"]["name"] for each in request.get("tools") or ()]
    begins = [f'[{{"name": "{name}", "parameters": ' for name in names]
    return any(text.startswith(each) or (not ended and each.startswith(text)) for each in begins)


def _named_by_user(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the tool that the user asks for in the last turn; empty if that was answered or names none."""
    for each in reversed(messages):
        if each["role"] in ("assistant", "tool"):
            return ""
        if each["role"] == "user" and (found := _NAMED_TOOL.search(_plain(each.get("content")))):
            return found[1]
    return ""


def _named(tools: Mapping[str, Any], choice: Mapping[str, Any]) -> Mapping[str, Any]:
    name = choice.get("function", {}).get("name")
    if name not in tools:
        message = "The tool specified in `tool_choice` does not match any of the specified `tools`"
        raise VllmApiError(400, message, param="tool_choice")
    named: Mapping[str, Any] = tools[name]
    return named


def _call(function: Mapping[str, Any]) -> dict[str, Any]:
    properties = {"name": {"const": function["name"]}, "parameters": _parameters(function)}
    return {"type": "object", "properties": properties, "required": ["name", "parameters"]}


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    return function.get("parameters") or {"type": "object", "properties": {}}


def _response_format(wanted: Mapping[str, Any] | None) -> dict[str, Any] | None:
    match wanted:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"json_object": True}
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {"json": schema}
    raise VllmApiError(400, f"response_format must be text, json_object or json_schema with a schema, "
                       f"got {str(wanted)[:100]!r}.", param="response_format")  # fmt: skip


def _plain(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] if part["type"] == "text" else item_text(part) for part in content)
    return content if isinstance(content, str) else ""

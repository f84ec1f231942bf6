"""Input items of the Responses API, as messages of a chat."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from qlm.gateway.api.bodies.content_parts import OTHER_KINDS
from qlm.gateway.api.errors import ApiError, invalid, shown
from qlm.gateway.api.messages import OTHER_MEDIA
from qlm.gateway.api.responses_api.tools import flat_name

_TEXTS: Final = frozenset({"input_text", "output_text", "text"})
_IMAGE: Final = "input_image"
_RESULT: Final = "function_call_output"
_ROLES: Final = ("user", "assistant", "system", "developer")
_KINDS: Final = "message, function_call, function_call_output or reasoning"


def as_items(given: str | Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return an input as items."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    return given


def chat_messages(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return items as messages of a chat: reasoning, text and calls that follow each other are one.

    Images of results of tools follow the last one, of the user, since chats have no place for them there.

    Raises:
        ApiError: An item is wrong, or of a kind that is not supported; the message has its place.
    """
    messages: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    for place, item in enumerate(items):
        where = f"input[{place}]"
        if item.get("type") == _RESULT:
            message, of_result = _result(item, where)
            messages.append(message)
            images += of_result
            continue
        if images and item.get("type", "message") == "message" and item.get("role") == "user":
            _add(messages, item, where)
            messages[-1]["content"] = images + _as_parts(messages[-1]["content"])
        else:
            messages += _shown(images)
            _add(messages, item, where)
        images = []
    messages += _shown(images)
    for message in messages:
        if message["role"] == "assistant" and "tool_calls" not in message:
            message.setdefault("content", "")
    return messages


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    match item.get("type", "message"):
        case "message":
            _add_message(messages, item, where)
        case "function_call":
            _assistant(messages, after=("reasoning", "content", "tool_calls")).setdefault(
                "tool_calls", []
            ).append(_call(item, where))
        case "reasoning":
            if text := _reasoning(item, where):
                message = _assistant(messages, after=("reasoning",))
                message["reasoning"] = message.get("reasoning", "") + text
        case other:
            raise _unsupported(f"{where}.type", other, _KINDS)


def _result(item: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the result of a tool as a message, and its images."""
    output, call = item.get("output"), _name(item, "call_id", where)
    where = f"{where}.output"
    parts: list[dict[str, Any]] = []
    if isinstance(output, list) and any(map(_is_image, output)):
        parts = [_with_image(each, f"{where}[{place}]") for place, each in enumerate(output)]
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    else:
        text = _text(output, where)
    images = [part for part in parts if part["type"] != "text"]
    return {"role": "tool", "tool_call_id": call, "content": text}, images


def _shown(images: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": images}] if images else []


def _as_parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _add_message(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    role = item.get("role")
    if role not in _ROLES:
        raise _unsupported(f"{where}.role", role, ", ".join(_ROLES))
    content, where = item.get("content"), f"{where}.content"
    if role == "assistant":
        _assistant(messages, after=("reasoning",))["content"] = _text(content, where)
    elif isinstance(content, list) and any(map(_is_image, content)):
        parts = [_with_image(each, f"{where}[{place}]") for place, each in enumerate(content)]
        messages.append({"role": role, "content": parts})
    else:
        messages.append({"role": role, "content": _text(content, where)})


def _assistant(messages: list[dict[str, Any]], after: Sequence[str]) -> dict[str, Any]:
    """Return the last message if it is of the assistant, with no fields but `after`; else a new one."""
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant" and set(last) <= {"role", *after}:
        return last
    messages.append({"role": "assistant"})
    return messages[-1]


def _call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    namespace = "" if item.get("namespace") is None else _name(item, "namespace", where)
    name = flat_name(namespace or None, _name(item, "name", where))
    function = {"name": name, "arguments": _name(item, "arguments", where)}
    return {"id": _name(item, "call_id", where), "type": "function", "function": function}


def _reasoning(item: Mapping[str, Any], where: str) -> str:
    parts = item.get("content") or []
    if not isinstance(parts, list) or not all(isinstance(each, Mapping) for each in parts):
        raise invalid(
            f"{where}.content", f"{where}.content is {shown(parts)}; expected parts of type reasoning_text"
        )
    return "".join(str(each.get("text", "")) for each in parts)


def _text(content: object, where: str) -> str:
    """Return text, or parts of it, as one text; parts are joined by line feeds, as those of chats."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(where, f"{where} is {shown(content)}; expected a text or a list of parts")
    return "\n".join(_part(each, f"{where}[{place}]") for place, each in enumerate(content))


def image_places(items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the places of the images of an input that `chat_messages` takes, in their order."""
    for place, item in enumerate(items):
        name = content_field(item)
        content = item.get(name)
        for number, part in enumerate(content if isinstance(content, list) else ()):
            if _is_image(part):
                yield f"input[{place}].{name}[{number}].image_url"


def content_field(item: Mapping[str, Any]) -> str:
    """Return the name of the field of an item that may have images among its parts."""
    return "output" if item.get("type") == _RESULT else "content"


def _is_image(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == _IMAGE


def _with_image(part: object, where: str) -> dict[str, Any]:
    """Return a part of a message that may be an image as a part of a chat."""
    if not isinstance(part, Mapping) or not _is_image(part):
        return {"type": "text", "text": _part(part, where)}
    if part.get("file_id") is not None:
        raise _unsupported(f"{where}.file_id", part["file_id"], "null: an image is named by its image_url")
    return {"type": "image_url", "image_url": {"url": _name(part, "image_url", where)}}


def _part(part: object, where: str) -> str:
    match part:
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": str(kind), "text": str(text)} if kind in _TEXTS:
            return text
        case {"type": "input_image"}:
            raise _unsupported(
                f"{where}.type", _IMAGE, "input_text or output_text: images are of users and results of tools"
            )
        case {"type": str(kind)} if kind in OTHER_KINDS:
            raise _unsupported(
                f"{where}.type", kind, f"input_text, output_text or input_image: {OTHER_MEDIA}"
            )
        case {"type": kind}:
            raise _unsupported(f"{where}.type", kind, "input_text or output_text, with a text")
    raise invalid(where, f"{where} is {shown(part)}; expected an object with type and text")


def _name(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}.{name}", f"{where}.{name} is {shown(value)}; expected a text")
    return value


def _unsupported(where: str, value: object, expected: str) -> ApiError:
    return invalid(where, f"{where} is {shown(value)}; expected {expected}", "unsupported_value")

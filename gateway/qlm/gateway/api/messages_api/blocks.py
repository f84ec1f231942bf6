"""Messages of Anthropic's API, with their content blocks, as messages of a chat."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from qlm.gateway.api.bodies.content_parts import OTHER_KINDS
from qlm.gateway.api.errors import invalid, shown
from qlm.gateway.api.messages import OTHER_MEDIA

_IMAGE: Final = "image"
_ATTRIBUTION: Final = "x-anthropic-billing-header"
_KINDS: Final[Mapping[str, str]] = {
    "user": "text, image or tool_result",
    "assistant": "text, thinking or tool_use",
}
"""Supported content blocks, by role."""


def chat_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages of a chat.

    Raises:
        ApiError: A message is wrong, or has a block that is not supported; the error has its place.
    """
    made: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        role, content = message.get("role"), message.get("content")
        # An answer without text or thinking, as one that was cut off, is sent back without blocks.
        empty = role == "assistant" and content in (None, [])
        blocks = () if empty else as_blocks(content, f"{where}.content")
        if role == "user":
            made += _of_user(blocks, f"{where}.content")
        elif role == "assistant":
            made.append(_of_assistant(blocks, f"{where}.content"))
        elif role == "system":
            made += system_messages(blocks, f"{where}.content")
        else:
            expected = "expected user, assistant or system"
            raise invalid(f"{where}.role", f"{where}.role is {shown(role)}; {expected}")
    if made and made[-1]["role"] == "assistant":
        where = f"messages[{len(messages) - 1}].role"
        expected = "expected user: the beginning of an answer cannot be given"
        raise invalid(where, f"{where} of the last message is assistant; {expected}", "unsupported_value")
    return made


def as_blocks(content: object, where: str) -> Sequence[Mapping[str, Any]]:
    """Return content as blocks.

    Raises:
        ApiError: It is neither a text nor a list of blocks.
    """
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list) and content and all(isinstance(each, Mapping) for each in content):
        return content
    raise invalid(where, f"{where} is {shown(content)}; expected a text or a list of blocks")


def image_places(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the places of the images of messages that `chat_messages` takes, in the order of its parts."""
    for place, message in enumerate(messages):
        if message["role"] == "user" and isinstance(message["content"], list):
            yield from _image_places(message["content"], f"messages[{place}].content")


def _image_places(blocks: Sequence[Mapping[str, Any]], where: str) -> Iterator[str]:
    for place, block in enumerate(blocks):
        at = f"{where}[{place}]"
        if block.get("type") == _IMAGE:
            yield f"{at}.source.{'data' if block['source']['type'] == 'base64' else 'url'}"
        elif block.get("type") == "tool_result" and isinstance(block.get("content"), list):
            yield from _image_places(block["content"], f"{at}.content")


def system_messages(blocks: Sequence[Mapping[str, Any]], where: str) -> list[dict[str, Any]]:
    """Return the message of text blocks, joined by line feeds, as those of chats; none if nothing is left.

    As in vLLM 0.32, the line in which Claude Code says who asks is left out. It is the first of the prompt
    and differs between conversations, which would share no prefix in the caches of engines.

    Raises:
        ApiError: One is of another kind.
    """
    given = [_text(block, f"{where}[{place}]", "text") for place, block in enumerate(blocks)]
    kept = [text for each in given if (text := _without_attribution(each)) is not None]
    return [{"role": "system", "content": "\n".join(kept)}] if kept else []


def _without_attribution(text: str) -> str | None:
    if not text.startswith(_ATTRIBUTION):
        return text
    _, _, rest = text.partition("\n")
    return rest or None


def _of_user(blocks: Sequence[Mapping[str, Any]], where: str) -> Iterator[dict[str, Any]]:
    """Yield the results of tools, each as a message, and then text and images, those of the results first."""
    parts: list[dict[str, Any]] = []
    for place, block in enumerate(blocks):
        at = f"{where}[{place}]"
        if block.get("type") == "tool_result":
            result, images = _result(block, at)
            parts += images
            yield result
        elif block.get("type") == _IMAGE:
            parts.append(_image(block, at))
        else:
            parts.append({"type": "text", "text": _text(block, at, _KINDS["user"])})
    if any(part["type"] != "text" for part in parts):
        yield {"role": "user", "content": parts}
    elif parts:
        yield {"role": "user", "content": "\n".join(part["text"] for part in parts)}


def _result(block: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the result of a tool as a message, and its images, for which such messages have no place."""
    content = block.get("content", "") or ""
    texts, images = [], []
    for place, each in enumerate(as_blocks(content, f"{where}.content")):
        at = f"{where}.content[{place}]"
        if each.get("type") == _IMAGE:
            images.append(_image(each, at))
        else:
            texts.append(_text(each, at, "text or image"))
    text = "\n".join(texts)
    # As text, since chats have no place for it.
    text = f"Error: {text}" if block.get("is_error") is True else text
    call = _name(block, "tool_use_id", where)
    return {"role": "tool", "tool_call_id": call, "content": text}, images


def _image(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return an image as a part of a chat."""
    match block.get("source"):
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            url = f"data:{kind};base64,{data}"
        case {"type": "url", "url": str(address)}:
            url = address
        case other:
            expected = 'expected {"type": "base64", "media_type", "data"} or {"type": "url", "url"}'
            raise invalid(f"{where}.source", f"{where}.source is {shown(other)}; {expected}")
    return {"type": "image_url", "image_url": {"url": url}}


def _of_assistant(blocks: Sequence[Mapping[str, Any]], where: str) -> dict[str, Any]:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for place, block in enumerate(blocks):
        at = f"{where}[{place}]"
        match block.get("type"):
            case "tool_use":
                calls.append(_call(block, at))
            case "thinking":
                reasoning.append(_name(block, "thinking", at))
            case "redacted_thinking":
                pass  # of a conversation begun with a model that alone can read it
            case _:
                texts.append(_text(block, at, _KINDS["assistant"]))
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if reasoning:
        message["reasoning"] = "".join(reasoning)
    if calls:
        message |= {"tool_calls": calls} | ({} if texts else {"content": None})
    return message


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = block.get("input")
    if not isinstance(given, Mapping):
        raise invalid(f"{where}.input", f"{where}.input is {shown(given)}; expected an object")
    function = {"name": _name(block, "name", where), "arguments": orjson.dumps(given).decode()}
    return {"id": _name(block, "id", where), "type": "function", "function": function}


def _text(block: Mapping[str, Any], where: str, kinds: str) -> str:
    kind, text = block.get("type"), block.get("text")
    if kind != "text":
        expected = f"{kinds}: {OTHER_MEDIA}" if isinstance(kind, str) and kind in OTHER_KINDS else kinds
        raise invalid(
            f"{where}.type", f"{where}.type is {shown(kind)}; expected {expected}", "unsupported_value"
        )
    if not isinstance(text, str):
        raise invalid(f"{where}.text", f"{where}.text is {shown(text)}; expected a text")
    return text


def _name(block: Mapping[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}.{name}", f"{where}.{name} is {shown(value)}; expected a text")
    return value

"""Items of the input of a response, as they are listed: each with an id, and texts as parts."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from qlm.domain.ids import RequestId
from qlm.gateway.api.fields.responses_api import InputItem
from qlm.gateway.api.responses_api.objects import input_item_id

_WITH_STATUS: Final = ("message", "function_call", "function_call_output")


def input_items(id: RequestId, items: Sequence[Mapping[str, Any]]) -> list[InputItem]:
    """Return the items of an input in order; one keeps the id that its client gave it, if no other has it.

    Args:
        id: The request.
        items: Its input, which `chat_messages` takes.
    """
    listed: dict[str, InputItem] = {}
    for place, item in enumerate(items):
        kind = item.get("type", "message")
        named = item.get("id")
        if not (isinstance(named, str) and named) or named in listed:
            named = input_item_id(id, kind, place)
        listed[named] = _listed(item, kind, named)
    return list(listed.values())


def _listed(item: Mapping[str, Any], kind: str, id: str) -> InputItem:
    made = {**item, "id": id, "type": kind}
    if kind in _WITH_STATUS:
        made["status"] = item.get("status") or "completed"
    if kind == "message":
        made["content"] = _parts(item.get("content"), item.get("role") == "assistant")
    if kind == "reasoning":
        made["summary"] = item.get("summary") or []
    return cast("InputItem", made)


def _parts(content: object, of_assistant: bool) -> list[dict[str, Any]]:
    if isinstance(content, str):
        content = [{"text": content}]
    assert isinstance(content, list)
    return [_part(each, of_assistant) for each in content]


def _part(part: Mapping[str, Any], of_assistant: bool) -> dict[str, Any]:
    if part.get("type") == "refusal":
        return dict(part)
    if part.get("type") == "input_image":
        return {"detail": "auto", **part}
    if of_assistant:
        return {"annotations": [], "logprobs": [], **part, "type": "output_text"}
    return {**part, "type": "input_text"}

"""Errors about fields of a chat, in the words of the API whose body became that chat."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from qlm.gateway.api.errors import ApiError

_IMAGE: Final = re.compile(r"messages\[(\d+)\]\.content(?:\[(\d+)\]\.image_url(?:\.url)?)?")


def renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """Return an error that calls fields of a chat by other names."""
    if error.param is None:
        return error
    first = next(iter(re.findall(r"^\w*", error.param)), "")
    if first not in names:
        return error
    rest = error.param.removeprefix(first)
    of_chat = "|".join(map(re.escape, names))
    message = re.sub(rf"\b({of_chat})\b", lambda found: names[found[0]], error.message)
    return replace(error, message=message, param=names[first] + rest)


def image_renamed(error: ApiError, chat: Sequence[Mapping[str, Any]], own: Sequence[str]) -> ApiError:
    """Return an error that names an image by its place in the body that became a chat.

    Args:
        error: The error.
        chat: The messages of the chat.
        own: Places of the images of the body, in their order, which the chat keeps. Images before them are of
            earlier responses.
    """
    found = _IMAGE.fullmatch(error.param or "")
    if found is None or error.param is None:
        return error
    images = _images(chat)
    named = [
        at for at, (message, part) in enumerate(images) if found[1] == message and found[2] in (None, part)
    ]
    if not named:
        return error
    place = named[0] - (len(images) - len(own))
    if place < 0:
        message = error.message.replace(
            error.param, "an image of the conversation of previous_response_id", 1
        )
        return replace(error, message=message, param="previous_response_id")
    return replace(error, message=error.message.replace(error.param, own[place], 1), param=own[place])


def _images(chat: Sequence[Mapping[str, Any]]) -> Sequence[tuple[str, str]]:
    """Return the places of all images of a chat, as in errors: message and part."""
    return [
        (str(message), str(part))
        for message, each in enumerate(chat)
        if isinstance(each.get("content"), list)
        for part, content in enumerate(each["content"])
        if content.get("type") == "image_url"
    ]

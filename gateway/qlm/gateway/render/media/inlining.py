"""Media of a conversation with their data in the place of their addresses."""

import asyncio
import binascii
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from qlm.domain.shell.tasks import end_tasks
from qlm.gateway.api.bodies.content_parts import (
    ADDRESS_CHARACTERS_MAX,
    AudioUrlPart,
    ImagePart,
    InputAudioPart,
    MediaPart,
    TextPart,
    VideoPart,
)
from qlm.gateway.api.errors import invalid, shown
from qlm.gateway.api.schema import ChatBody
from qlm.gateway.render.media.links import Links, too_large

_BASE64: Final = ";base64"

_Sized = tuple[dict[str, Any], int]
"""A part, and the bytes that were fetched for it."""


@dataclass(frozen=True, slots=True)
class Inlined:
    """A conversation for a render tier.

    Attributes:
        messages: The messages, with all media as data.
        parts: The parts with media, in order.
    """

    messages: Sequence[Mapping[str, Any]]
    parts: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Found:
    message: int
    place: int
    part: MediaPart

    @property
    def where(self) -> str:
        return f"messages[{self.message}].content[{self.place}].{self.part.type}"


async def inlined(body: ChatBody, messages: Sequence[Mapping[str, Any]], links: Links) -> Inlined:
    """Return a conversation with all its media as data.

    Args:
        body: The checked body.
        messages: Its messages as received.
        links: Fetches what is named by a URL.

    Raises:
        ApiError: One cannot be fetched, is no base64, or they are too many or too large.
    """
    found = list(_media_of(body))
    if not found:
        return Inlined(messages, ())
    if len(found) > (most := links.limits.items_max):
        message = f"the request has {len(found)} media; expected at most {most} (media.items_max)"
        raise invalid("messages", message)
    room = links.limits.bytes_max
    sized = []
    # First those that need no fetch: they may be refused at once. Others go on while they are decoded.
    sizes = await asyncio.to_thread(lambda: [_given_bytes(each) for each in found])
    for each, size in zip(found, sizes, strict=True):
        if size is not None:
            room -= size
            if room < 0:
                raise too_large(each.where, links.limits)
        elif not links.limits.fetch:
            expected = "expected a data: URL (media.fetch is off)"
            raise invalid(each.where, f"{each.where} is {shown(_url(each.part))}; {expected}")
    fetches = (_part(each, links, room) for each in found)
    for each, (part, size) in zip(found, await _all(fetches), strict=True):
        room -= size
        if room < 0:
            raise too_large(each.where, links.limits)
        sized.append(part)
    made = [dict(message) for message in messages]
    for each, part in zip(found, sized, strict=True):
        content = list(made[each.message]["content"])
        content[each.place] = part
        made[each.message]["content"] = content
    return Inlined(made, sized)


async def _all(fetches: Iterable[Coroutine[Any, Any, _Sized]]) -> Sequence[_Sized]:
    """Return all results; the first error ends the other fetches."""
    tasks = [asyncio.create_task(each) for each in fetches]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end_tasks(tasks)


def _media_of(body: ChatBody) -> Iterator[_Found]:
    for message, each in enumerate(body.messages):
        if isinstance(each.content, list):
            for place, part in enumerate(each.content):
                if not isinstance(part, TextPart):
                    yield _Found(message, place, part)


async def _part(found: _Found, links: Links, room: int) -> _Sized:
    """Return a part as a render tier takes it, and the bytes that were fetched for it."""
    part = found.part
    if isinstance(part, InputAudioPart):
        return {"type": part.type, part.type: part.input_audio.model_dump()}, 0
    url, size = _url(part), 0
    if not url.startswith("data:"):
        url, size = await links.data_url(url, f"{found.where}.url", room)
    return {"type": part.type, part.type: {"url": url}}, size


def _url(part: MediaPart) -> str:
    match part:
        case ImagePart():
            return part.image_url.url
        case AudioUrlPart():
            return part.audio_url.url
        case VideoPart():
            return part.video_url.url
        case InputAudioPart():
            return ""


def _given_bytes(found: _Found) -> int | None:
    """Return the size of media that came as data; None for those to fetch.

    Raises:
        ApiError: They are no base64, or the URL is neither `data:`, `http:` nor `https:`.
    """
    if isinstance(found.part, InputAudioPart):
        return _decoded_bytes(found.part.input_audio.data, f"{found.where}.data")
    url, where = _url(found.part), f"{found.where}.url"
    if url.startswith("data:"):
        head, comma, data = url.partition(",")
        if not comma or not head.endswith(_BASE64):
            raise invalid(where, f"{where} is {shown(url)}; expected data:TYPE;base64,DATA")
        return _decoded_bytes(data, where)
    if not url.startswith(("http://", "https://")) or len(url) > ADDRESS_CHARACTERS_MAX:
        expected = f"a data:, http: or https: URL of at most {ADDRESS_CHARACTERS_MAX} characters"
        raise invalid(where, f"{where} is {shown(url)}; expected {expected}")
    return None


def _decoded_bytes(text: str, where: str) -> int:
    try:
        size = len(binascii.a2b_base64(text, strict_mode=True))
    except (binascii.Error, ValueError) as error:
        raise invalid(where, f"{where} is {shown(text)}; expected base64 ({error})") from error
    if not size:
        raise invalid(where, f"{where} is {shown(text)}; expected data")
    return size

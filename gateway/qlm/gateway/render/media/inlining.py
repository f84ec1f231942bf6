"""Media of a conversation with their data in the place of their addresses."""

import asyncio
import binascii
import re
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
from qlm.gateway.render.media.links import OF_A_REQUEST_MAX, Links, Room

_SCHEME_MAX: Final = 5
_DATA: Final = re.compile(r"data:[\w.+-]+/[\w.+-]+;base64", re.ASCII)
"""Beginning of a `data:` URL as vLLM reads it, without further parameters."""


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
    # First those that need no fetch: they may be refused at once. Others go on while they are decoded.
    room = Room(links.limits, body.n)
    sizes = await asyncio.to_thread(lambda: [_given_bytes(each) for each in found])
    for each, size in zip(found, sizes, strict=True):
        if size is not None:
            room.take(size, each.where)
        elif not links.limits.fetch:
            expected = "expected a data: URL (media.fetch is off)"
            raise invalid(each.where, f"{each.where} is {shown(_url(each.part))}; {expected}")
    parts = [_part(each) for each in found]
    to_fetch = [place for place, size in enumerate(sizes) if size is None]
    if to_fetch:
        async with links.turns:
            urls = await _all(_fetched(found[place], links, room) for place in to_fetch)
        for place, url in zip(to_fetch, urls, strict=True):
            parts[place] = _with_url(found[place].part, url)
    made = [dict(message) for message in messages]
    for each, part in zip(found, parts, strict=True):
        content = list(made[each.message]["content"])
        content[each.place] = part
        made[each.message]["content"] = content
    return Inlined(made, parts)


async def _all(fetches: Iterable[Coroutine[Any, Any, str]]) -> Sequence[str]:
    """Return all results, a few fetches at a time; the first error ends the others."""
    few = asyncio.Semaphore(OF_A_REQUEST_MAX)

    async def in_turn(fetch: Coroutine[Any, Any, str]) -> str:
        async with few:
            return await fetch

    waiting = list(fetches)
    tasks = [asyncio.create_task(in_turn(each)) for each in waiting]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end_tasks(tasks)
        for each in waiting:
            each.close()  # one that has not had its turn


def _media_of(body: ChatBody) -> Iterator[_Found]:
    for message, each in enumerate(body.messages):
        if isinstance(each.content, list):
            for place, part in enumerate(each.content):
                if not isinstance(part, TextPart):
                    yield _Found(message, place, part)


async def _fetched(found: _Found, links: Links, room: Room) -> str:
    return await links.data_url(_url(found.part), f"{found.where}.url", room)


def _part(found: _Found) -> dict[str, Any]:
    """Return a part as a render tier takes it."""
    part = found.part
    if isinstance(part, InputAudioPart):
        return {"type": part.type, part.type: part.input_audio.model_dump()}
    return _with_url(part, _url(part))


def _with_url(part: MediaPart, url: str) -> dict[str, Any]:
    return {"type": part.type, part.type: {"url": url}}


def _url(part: MediaPart) -> str:
    """Return the URL of a part, with its scheme in lower case; empty for one with data."""
    match part:
        case ImagePart():
            url = part.image_url.url
        case AudioUrlPart():
            url = part.audio_url.url
        case VideoPart():
            url = part.video_url.url
        case InputAudioPart():
            return ""
    scheme, colon, rest = url.partition(":")
    return f"{scheme.lower()}{colon}{rest}" if len(scheme) <= _SCHEME_MAX else url


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
        if not comma or not _DATA.fullmatch(head):
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

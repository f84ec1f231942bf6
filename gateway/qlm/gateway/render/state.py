"""What derendering needs to know of a request: its `render_state`, which travels with its metadata.

So any gateway can turn the output log into the answer, without the conversation.
"""

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from qlm.domain.errors import UndecodableDataError
from qlm.domain.formats.field_checks import RENDER_STATE_CHARACTERS_MAX
from qlm.domain.ids import TokenIds
from qlm.gateway.api.errors import invalid

PROMPT_TOKENS_MAX: Final = 4096
"""Prompt tokens kept for a model that reasons: parsers look for the last mark of its reasoning there."""

_NO_MESSAGES: Final = [{"role": "user", "content": ""}]
"""In place of the conversation: the parsers read tools and options only."""


@dataclass(frozen=True, slots=True)
class RenderState:
    """Options of a conversation, and the end of its prompt.

    Attributes:
        chat_request: A chat completion request without its conversation.
        prompt_ids: The last tokens of the prompt; empty if those of the metadata are enough.
    """

    chat_request: Mapping[str, Any]
    prompt_ids: TokenIds = ()


def pack(state: RenderState) -> str:
    """Return the state as text.

    Raises:
        ApiError: It is too long for a message.
    """
    plain = orjson.dumps([dict(state.chat_request), list(state.prompt_ids)])
    text = base64.b85encode(zlib.compress(plain)).decode()
    if len(text) > RENDER_STATE_CHARACTERS_MAX:
        have = f"tools has {len(text)} characters when compressed"
        raise invalid("tools", f"{have}; expected at most {RENDER_STATE_CHARACTERS_MAX}")
    return text


def unpack(text: str) -> RenderState:
    """Return the state of a text.

    Raises:
        UndecodableDataError: It is none.
    """
    try:
        chat_request, prompt_ids = orjson.loads(zlib.decompress(base64.b85decode(text)))
        return RenderState({**chat_request, "messages": _NO_MESSAGES}, tuple(prompt_ids))
    except (ValueError, TypeError, zlib.error) as error:
        raise UndecodableDataError(f"the render state cannot be read: {error!r}") from error

"""Bodies of /tokenize and /detokenize, as vLLM has them."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qlm.gateway.api.bodies.parts import TokenIds
from qlm.gateway.api.messages import Message
from qlm.gateway.api.neutral_fields import CHAT, drop_neutral
from qlm.gateway.api.rendered_fields import Tool
from qlm.gateway.api.schema import ChatBody, explained, parse_chat

TOKENIZED_CHAT: Final[Mapping[str, tuple[object, ...]]] = {
    name: CHAT[name] for name in ("chat_template", "mm_processor_kwargs")
} | {"media_io_kwargs": ()}
"""Neutral values of unsupported fields of a conversation in /tokenize."""


class _Tokenizer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    # A name from `GET /v1/models`; without, the only one.
    model: Annotated[str, Field(max_length=200)] | None = None


class TokenizeText(_Tokenizer):
    """A text to tokenize, as the prompt of a completion."""

    prompt: str  # The text
    add_special_tokens: bool = True  # With those that the model wants around a prompt
    return_token_strs: bool = False  # Answer with the text of each token, too


class TokenizeChat(_Tokenizer):
    """A conversation to tokenize, as that of a chat."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)]  # The conversation
    # Tools that the model may call. This field and those up to `add_special_tokens` need the model's render
    # tier unless they change nothing.
    tools: Annotated[list[Tool], Field(max_length=1000)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # Variables of the model's chat template
    continue_final_message: bool = False  # As in chats
    add_generation_prompt: bool = True  # As in chats
    add_special_tokens: bool = False  # As in chats
    return_token_strs: bool = False  # Answer with the text of each token, too


class Detokenize(_Tokenizer):
    """Tokens to turn into text."""

    tokens: TokenIds  # Token ids


def parse_tokenize(plain: Mapping[str, Any]) -> TokenizeText | TokenizeChat:
    """Return the checked body of POST /tokenize.

    Raises:
        ApiError: A field is wrong, missing or not supported; the message names it.
    """
    if "messages" not in plain:
        return _checked(TokenizeText, drop_neutral(plain, {}))
    return _checked(TokenizeChat, drop_neutral(plain, TOKENIZED_CHAT))


def parse_detokenize(plain: Mapping[str, Any]) -> Detokenize:
    """Return the checked body of POST /detokenize.

    Raises:
        ApiError: A field is wrong, missing or not supported; the message names it.
    """
    return _checked(Detokenize, drop_neutral(plain, {}))


def as_chat(plain: Mapping[str, Any]) -> tuple[ChatBody, dict[str, Any]]:
    """Return the chat whose prompt is tokenized, checked and as a chat would send it."""
    kept = drop_neutral(plain, TOKENIZED_CHAT)
    chat = {name: value for name, value in kept.items() if name != "return_token_strs"}
    return parse_chat(chat), chat


_Body = TypeVar("_Body", bound=BaseModel)


def _checked(model: type[_Body], fields: Mapping[str, Any]) -> _Body:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise explained(error, model) from error

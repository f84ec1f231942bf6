"""Shapes of the streams of the OpenAI SDK, for `streams.pace` and `pace_sync`; it is not imported.

Chunks that carry more than text (tool calls, log probabilities, token ids, usage, the end) pass as they are.
"""

from typing import Any, Final

from qlm.pacer.core.items import Shape

_TOKEN_IDS: Final = ("token_ids", "prompt_token_ids")
"""Fields of `return_token_ids`, of a chunk or its choice: each piece of the text would repeat them."""


def _plain_choice(chunk: Any) -> Any | None:
    """Return the choice of a chunk that has nothing but text; None for others."""
    if len(chunk.choices) != 1 or chunk.usage is not None:
        return None
    choice = chunk.choices[0]
    if choice.finish_reason is not None or choice.logprobs is not None:
        return None
    with_ids = any(getattr(part, name, None) for part in (chunk, choice) for name in _TOKEN_IDS)
    return None if with_ids else choice


def _chat_text(chunk: Any) -> str | None:
    choice = _plain_choice(chunk)
    if choice is None or choice.delta.model_dump(exclude_none=True).keys() - {"content", "role"}:
        return None
    content: str | None = choice.delta.content
    return content


def _chat_with_text(chunk: Any, text: str) -> Any:
    choice = chunk.choices[0]
    delta = choice.delta.model_copy(update={"content": text})
    return chunk.model_copy(update={"choices": [choice.model_copy(update={"delta": delta})]})


CHAT: Final[Shape[Any]] = Shape(_chat_text, _chat_with_text, lambda chunk: chunk.choices[0].index)
"""Chunks of `chat.completions.create(stream=True)`."""


def _completion_text(chunk: Any) -> str | None:
    choice = _plain_choice(chunk)
    text: str | None = None if choice is None else choice.text
    return text


def _completion_with_text(chunk: Any, text: str) -> Any:
    return chunk.model_copy(update={"choices": [chunk.choices[0].model_copy(update={"text": text})]})


COMPLETION: Final[Shape[Any]] = Shape(
    _completion_text, _completion_with_text, lambda chunk: chunk.choices[0].index
)
"""Chunks of `completions.create(stream=True)`."""

"""Messages of a conversation, as clients send them."""

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from qlm.gateway.api.rendered_fields import ToolCall

CONTENT: Final = "a string or a list of parts of type text"
MEDIA_PARTS: Final = frozenset(
    {
        "audio_embeds", "audio_url", "document", "file", "image", "image_embeds", "image_pil", "image_url",
        "input_audio", "input_file", "input_image", "prompt_embeds", "video_embeds", "video_url",
    }
)  # fmt: skip
"""Kinds of content parts other than text, of OpenAI, Anthropic and vLLM 0.32 (`MM_PARSER_MAP`)."""

NO_MEDIA: Final = "images, audio, video and files are not supported, since a queued prompt is token ids alone"
FORMER_REASONING: Final = "reasoning_content"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def as_sent_back(message: object) -> object:
    """Return a message without what clients add when they send an earlier answer back.

    That is: nulls, an empty list of parts beside tool calls, and the former name of `reasoning`, which
    LiteLLM uses and vLLM 0.32 still takes.
    """
    if not isinstance(message, dict):
        return message
    fields = {key: value for key, value in message.items() if value is not None or key == "content"}
    if fields.get("content") == [] and fields.get("tool_calls"):
        fields["content"] = None
    former = fields.pop(FORMER_REASONING, None)
    return fields if former is None else {"reasoning": former, **fields}


class TextPart(_Strict):
    """A content part; only text is supported."""

    type: Literal["text"]  # Kind of part
    text: str  # The text
    cache_control: dict[str, Any] | None = None  # Accepted, not used: equal beginnings are found without it


class Message(_Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]  # Author of the message
    tool_calls: list[ToolCall] | None = None  # Tool calls of an earlier answer; needs a render tier
    # Text, or parts of it; null beside `tool_calls`
    content: str | Annotated[list[TextPart], Field(min_length=1)] | None = Field(None, validate_default=True)
    name: Annotated[str, Field(max_length=100)] | None = None  # Author's name, for the model's chat template
    tool_call_id: str | None = None  # With role `tool`, the call that this message answers
    # Reasoning of an earlier answer, also under its former name `reasoning_content`; needs a render tier
    reasoning: str | None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None  # Accepted, not used

    @field_validator("content", mode="before")
    @classmethod
    def _no_media(cls, content: object) -> object:
        if isinstance(content, list) and (kinds := _other_kinds(content)):
            raise ValueError(f"{CONTENT}, not {', '.join(kinds)}: {NO_MEDIA}")
        return content

    @field_validator("content")
    @classmethod
    def _text_or_calls(
        cls, content: str | list[TextPart] | None, info: ValidationInfo
    ) -> str | list[TextPart] | None:
        if content is None and not info.data.get("tool_calls"):
            raise ValueError(CONTENT)
        return content

    @property
    def rendered_field(self) -> str | None:
        """Name of a field for which it needs a render tier; None without one."""
        if self.role == "tool":
            return "role"
        if not (self.tool_calls or self.tool_call_id or self.reasoning):
            return None
        return next(name for name in ("tool_calls", "tool_call_id", "reasoning") if getattr(self, name))


def _names(part: dict[str, object]) -> Iterable[object]:
    return (part["type"],) if "type" in part else part


def _other_kinds(parts: Iterable[object]) -> list[str]:
    """Return the kinds of media among content parts: by type, or by a field as in vLLM."""
    named = (name for part in parts if isinstance(part, dict) for name in _names(part))
    return list(dict.fromkeys(name for name in named if isinstance(name, str) and name in MEDIA_PARTS))

"""Messages of a conversation, as clients send them."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from qlm.domain.shown import cut
from qlm.gateway.api.bodies.content_parts import (
    MEDIA_KINDS,
    OTHER_KINDS,
    PART_FIELDS,
    ContentPart,
    MediaPart,
    TextPart,
)
from qlm.gateway.api.rendered_fields import ToolCall

CONTENT: Final = (
    'a string or a list of parts such as {"type": "text", "text": "..."} or '
    '{"type": "image_url", "image_url": {"url": "..."}}; other types are input_audio, audio_url and video_url'
)
OTHER_MEDIA: Final = "files and embeddings are not supported"
FORMER_REASONING: Final = "reasoning_content"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def as_sent_back(message: object) -> object:
    """Return a message without what clients add when they send an earlier answer back.

    That is: nulls, an empty list of parts, and the former name of `reasoning`, which LiteLLM uses and
    vLLM 0.32 still takes. An answer without text, as one that was cut off inside its
    reasoning, has an empty one, and so has the result of a tool that gave nothing; the text of a refusal is
    that of the message, or of its part.
    """
    if not isinstance(message, dict):
        return message
    fields = {key: value for key, value in message.items() if value is not None or key == "content"}
    role = fields.get("role")
    if fields.get("content") == [] and role in ("assistant", "tool"):
        fields["content"] = None
    former = fields.pop(FORMER_REASONING, None)
    if former is not None:
        fields = {"reasoning": former, **fields}
    if role == "tool" and fields.get("content", "") is None:
        return {**fields, "content": ""}
    return _with_text(fields) if role == "assistant" else fields


def _with_text(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an earlier answer with a text if it has neither that nor calls, and refusals as texts."""
    if isinstance(parts := answer.get("content"), list):
        return {**answer, "content": [_refusal_as_text(part) for part in parts]}
    if answer.get("content") is not None or answer.get("tool_calls"):
        return answer
    if answer.keys().isdisjoint(("content", "reasoning", "refusal")):
        return answer
    rest = {key: value for key, value in answer.items() if key != "refusal"}
    return {**rest, "content": answer.get("refusal", "")}


def _refusal_as_text(part: object) -> object:
    match part:
        case {"type": "refusal", "refusal": str(text), **others} if not others:
            return {"type": "text", "text": text}
    return part


class Message(_Strict):
    """One message of a conversation."""

    # Author of the message; `developer` is `system` where the model's chat template does not know it
    role: Literal["system", "developer", "user", "assistant", "tool"]
    tool_calls: list[ToolCall] | None = None  # Tool calls of an earlier answer; needs a render tier
    # Text, or parts of it; null or an empty list beside `tool_calls`, of an assistant without text, or with a
    # `refusal`, and of a tool that gave nothing
    content: str | Annotated[list[ContentPart], Field(min_length=1, fail_fast=True)] | None = Field(
        None, validate_default=True
    )
    name: Annotated[str, Field(max_length=100)] | None = None  # Author's name, for the model's chat template
    tool_call_id: str | None = None  # With role `tool`, the call that this message answers
    # Reasoning of an earlier answer, also under its former name `reasoning_content`; needs a render tier
    reasoning: str | None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None  # Accepted, not used
    cache_control: dict[str, Any] | None = None  # Accepted, not used: equal beginnings are found without it

    @field_validator("content", mode="before")
    @classmethod
    def _no_other_kinds(cls, content: object) -> object:
        if isinstance(content, list) and (kinds := _other_kinds(content)):
            raise ValueError(f"{CONTENT}; not {', '.join(kinds)}: {OTHER_MEDIA}")
        if isinstance(content, list) and (field := _unknown_field(content)) is not None:
            raise ValueError(f"{CONTENT}; not content{field}: it is not supported")
        return content

    @field_validator("content")
    @classmethod
    def _text_or_calls(
        cls, content: str | list[ContentPart] | None, info: ValidationInfo
    ) -> str | list[ContentPart] | None:
        if content is None and not info.data.get("tool_calls"):
            raise ValueError(CONTENT)
        return content

    @property
    def text(self) -> str:
        """Its text; text parts are joined by line feeds, as in vLLM."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content or () if isinstance(part, TextPart))

    @property
    def media(self) -> Sequence[MediaPart]:
        """Its parts other than text."""
        if self.content is None or isinstance(self.content, str):
            return ()
        return [part for part in self.content if not isinstance(part, TextPart)]

    @property
    def rendered_field(self) -> str | None:
        """Name of a field for which it needs a render tier; None without one."""
        if self.role == "tool":
            return "role"
        if self.media:
            return "content"
        if not (self.tool_calls or self.tool_call_id or self.reasoning):
            return None
        return next(name for name in ("tool_calls", "tool_call_id", "reasoning") if getattr(self, name))


def _unknown_field(parts: Iterable[object]) -> str | None:
    """Return the place of the first field that parts of its type do not have."""
    for place, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, dict) and isinstance(kind, str) and kind in PART_FIELDS:
            name = next((name for name in part if name not in PART_FIELDS[kind]), None)
            if name is not None:
                return f"[{place}].{cut(name)}"
    return None


def _other_kinds(parts: Iterable[object]) -> list[str]:
    """Return the kinds of parts that are not supported: by type, or without one by a field as in vLLM."""
    known = OTHER_KINDS.union(MEDIA_KINDS)
    kinds: dict[str, None] = {}
    for part in parts:
        if not isinstance(part, dict):
            continue
        if "type" in part:
            kinds |= {kind: None for kind in (part["type"],) if isinstance(kind, str) and kind in OTHER_KINDS}
        else:
            kinds |= {f"{name} without a type": None for name in part if name in known}
    return list(kinds)

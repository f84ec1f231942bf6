"""Fields of /v1/chat/completions that need the model's render tier, and their values without effect."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

PLAIN_TEXT: Final = {"type": "text"}
"""Value of `response_format` without effect."""

RENDERED: Final[Mapping[str, tuple[object, ...]]] = {
    "tools": ([],),
    "tool_choice": (),
    "parallel_tool_calls": (),
    "response_format": (PLAIN_TEXT,),
    "structured_outputs": (),
    "reasoning_effort": (),
    "include_reasoning": (True,),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "documents": ([],),
}
"""Neutral values of each field; null is neutral everywhere."""

OF_PROMPT: Final = frozenset(
    {"continue_final_message", "add_generation_prompt", "add_special_tokens", "documents"}
)
"""Those of them that change the prompt alone, and not how its answer is read."""

TOOL_CHOICES: Final = "none, auto, required, or an object with type function and function.name"

_OF_TOOLS: Final[Mapping[str, tuple[object, ...]]] = {
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
}
"""Values without effect where there are no tools."""


def without_effect(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the rendered fields of a body that change nothing."""
    neutral = {**RENDERED, **({} if body.get("tools") else _OF_TOOLS)}
    return frozenset(
        name
        for name, values in neutral.items()
        if name in body and any(type(body[name]) is type(each) and body[name] == each for each in values)
    )


def is_tool_choice(value: str | dict[str, Any]) -> bool:
    """Return whether a value of `tool_choice` is one of TOOL_CHOICES."""
    match value:
        case "none" | "auto" | "required":
            return True
        case {"type": "function", "function": {"name": str()}}:
            return True
    return False


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ToolDefinition(_Strict):
    """The function of a tool."""

    name: Annotated[str, Field(min_length=1, max_length=200)]  # Its name in calls
    description: str | None = None  # What it does, for the model
    parameters: dict[str, Any] | None = None  # JSON schema of its arguments
    strict: bool | None = None  # True if calls have to fit the schema


class Tool(_Strict):
    """A tool that the model may call."""

    type: Literal["function"]  # Kind of tool
    function: ToolDefinition  # The function
    cache_control: dict[str, Any] | None = None  # Accepted, not used: equal beginnings are found without it


class ToolFunction(_Strict):
    """The function of a tool call."""

    name: str  # Name of the tool
    arguments: str  # Its arguments, as JSON text


class ToolCall(_Strict):
    """A tool call of an earlier answer."""

    id: str  # Its id, as in the answer
    type: Literal["function"]  # Kind of tool
    function: ToolFunction  # What was called
    index: int | None = None  # Accepted, not used


class ResponseFormat(_Strict):
    """Form of the answer."""

    type: Literal["json_object", "json_schema"]  # Any JSON object, or JSON that fits `json_schema`
    json_schema: dict[str, Any] | None = None  # Object with a `name` and the JSON `schema`

    @model_validator(mode="after")
    def _with_schema(self) -> Self:
        if self.type == "json_schema" and not isinstance((self.json_schema or {}).get("schema"), dict):
            raise ValueError("json_schema with a name and a schema, since its type is json_schema")
        return self

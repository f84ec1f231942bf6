"""Tools of the Responses API: functions, namespaces of functions, and those that a server would run.

As in vLLM, the model sees a function of a namespace as `NAMESPACE__NAME`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from qlm.gateway.api.bodies.parts import Strict
from qlm.gateway.api.errors import invalid, shown

_SEPARATOR: Final = "__"
NAME_CHARACTERS_MAX: Final = 200
WEB_SEARCH: Final = (
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
)
_KINDS: Final = frozenset({"function", "namespace", *WEB_SEARCH})


class FunctionTool(Strict):
    """A function that the model may call."""

    type: Literal["function"]  # Kind of tool; most of those that a server runs are not supported
    name: Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX)]  # Its name in calls
    description: str | None = None  # What it does, for the model
    parameters: dict[str, Any] | None = None  # JSON schema of its arguments
    strict: bool | None = None  # True if calls have to fit the schema
    defer_loading: Literal[False] | None = None  # Tools cannot be loaded later


class NamespaceTool(Strict):
    """Functions with a common name; calls have it as `namespace`."""

    type: Literal["namespace"]  # Kind of tool
    name: Annotated[str, Field(min_length=1, max_length=100)]  # Name of the namespace
    description: str | None = None  # Accepted, not used
    tools: Annotated[list[FunctionTool], Field(max_length=1000)]  # Its functions


class WebSearchTool(Strict):
    """A search of the web: accepted, not used. The model is not offered it, as in vLLM."""

    model_config = ConfigDict(extra="allow")

    # Kind of tool; agents send it unasked, and do without its results.
    type: Literal[
        "web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"
    ]


def _shape(tool: object) -> str:
    """Return the type of a tool, by its field `type`; errors name it where it stands for no place."""
    if isinstance(tool, FunctionTool | NamespaceTool | WebSearchTool):
        return type(tool).__name__
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if kind in WEB_SEARCH:
        return WebSearchTool.__name__
    return NamespaceTool.__name__ if kind == "namespace" else FunctionTool.__name__


Tool = Annotated[
    Annotated[FunctionTool, Tag("FunctionTool")]
    | Annotated[NamespaceTool, Tag("NamespaceTool")]
    | Annotated[WebSearchTool, Tag("WebSearchTool")],
    Discriminator(_shape),
]


def check_kind(place: int, tool: object) -> None:
    """Refuse a tool of a kind that is not supported, by its place.

    Raises:
        ApiError: It is.
    """
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if isinstance(kind, str) and kind not in _KINDS:
        name = f"tools[{place}].type"
        expected = "expected function or namespace: tools that a server runs are not supported"
        raise invalid(name, f"{name} is {shown(kind)}; {expected}", "unsupported_value")


def offered(tools: Sequence[FunctionTool | NamespaceTool | WebSearchTool]) -> Iterator[dict[str, Any]]:
    """Return the tools that the model sees, in the form of a chat."""
    for tool in tools:
        if isinstance(tool, FunctionTool):
            yield _in_chat(tool, tool.name)
        elif isinstance(tool, NamespaceTool):
            for each in tool.tools:
                yield _in_chat(each, flat_name(tool.name, each.name))


def _in_chat(tool: FunctionTool, name: str) -> dict[str, Any]:
    fields = tool.model_dump(exclude={"type", "defer_loading"}, exclude_none=True)
    return {"type": "function", "function": {**fields, "name": name}}


def flat_name(namespace: str | None, name: str) -> str:
    """Return the name of a function as the model sees it."""
    return name if namespace is None else f"{namespace}{_SEPARATOR}{name}"


class ToolNames:
    """Names of tools, by the name that the model sees.

    Args:
        tools: Tools of a body, as received and checked.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._plain = {tool["name"] for tool in tools if tool.get("type") == "function"}
        self._names = {
            flat_name(tool["name"], each["name"]): (tool["name"], each["name"])
            for tool in tools
            if tool.get("type") == "namespace"
            for each in tool["tools"]
        }

    def of_call(self, seen: str) -> dict[str, str]:
        """Return name and namespace of a call of the model."""
        if (found := self._names.get(seen)) is None:
            return {"name": seen}
        namespace, name = found
        return {"name": name, "namespace": namespace}

    def chosen(self, name: str, namespace: str | None) -> str:
        """Return how the model sees a function that a choice names, perhaps without its namespace.

        Raises:
            ApiError: No function is named so, or several are.
        """
        exact = flat_name(namespace, name)
        if exact in self._plain or exact in self._names:
            return exact
        seen = [flat for flat, (_, each) in self._names.items() if each == name and namespace is None]
        if len(seen) == 1:
            return seen[0]
        expected = f"one of {', '.join(seen)}" if seen else "the name of a function in tools"
        raise invalid("tool_choice", f"tool_choice names {shown(exact)}; expected {expected}")


def check_names(tools: Sequence[FunctionTool | NamespaceTool | WebSearchTool]) -> None:
    """Refuse functions that the model cannot tell apart, and names too long for it.

    Raises:
        ApiError: There is one.
    """
    seen = set[str]()
    for place, name in _flat_names(tools):
        if len(name) > NAME_CHARACTERS_MAX or name in seen:
            expected = (
                f"expected at most {NAME_CHARACTERS_MAX} characters"
                if name not in seen
                else "expected it once"
            )
            raise invalid(place, f"{place} makes the function {shown(name)} for the model; {expected}")
        seen.add(name)


def _flat_names(
    tools: Sequence[FunctionTool | NamespaceTool | WebSearchTool],
) -> Iterator[tuple[str, str]]:
    for number, tool in enumerate(tools):
        if isinstance(tool, FunctionTool):
            yield f"tools[{number}].name", tool.name
        elif isinstance(tool, NamespaceTool):
            for inner, each in enumerate(tool.tools):
                yield f"tools[{number}].tools[{inner}].name", flat_name(tool.name, each.name)

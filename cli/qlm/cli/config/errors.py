"""Configuration errors in one sentence: key, value and expectation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from qlm.domain.errors import QlmError
from qlm.domain.shown import shown


class ConfigError(QlmError):
    """Invalid configuration; the message names file, key, value and expectation."""


Steps = tuple[int | str, ...]
"""Path to a value: keys, and positions in lists."""

_EXPECTED: Final[Mapping[str, str]] = {
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "finite_number": "a finite number",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
    "string_too_short": "some text",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "text that matches {pattern}",
    "literal_error": "{expected}",
    "model_type": "a section with keys of its own",
    "dict_type": "a section with keys of its own",
    "mapping_type": "names and values",
    "tuple_type": "a list",
    "string_type": "text",
    "path_type": "a path",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_type": "a number",
    "float_parsing": "a number",
}


def explain(error: ValidationError, by_name: Callable[[Steps], Steps] = lambda steps: steps) -> str:
    """Describe pydantic's first error and count the others; `by_name` changes the path that is shown."""
    first, *others = _mistakes(error.errors(include_url=False))
    key = ".".join(str(step) for step in by_name(first["loc"]))
    return _sentence(key, first) + (f" ({len(others)} more)" if others else "")


def _mistakes(complaints: Sequence[Any]) -> list[Any]:
    """Leave out a list that is too short only because an item of it is invalid."""
    wrong = [each["loc"] for each in complaints]
    return [
        each
        for each in complaints
        if each["type"] != "too_short" or not any(_inside(loc, each["loc"]) for loc in wrong)
    ]


def _inside(steps: Steps, outer: Steps) -> bool:
    return len(steps) > len(outer) and steps[: len(outer)] == outer


def _sentence(key: str, first: Mapping[str, Any]) -> str:
    kind, value = first["type"], shown(first["input"])
    if kind == "value_error":
        return f"{key or 'it'} {first['ctx']['error']!s}"
    if kind == "missing":
        return f"{key} is missing; expected a value"
    if kind == "extra_forbidden":
        return f"{key} is {value}; expected no key of this name"
    template = _EXPECTED.get(kind)
    expected = template.format(**first.get("ctx", {})) if template else first["msg"].lower()
    return f"{key} is {value}; expected {expected}"

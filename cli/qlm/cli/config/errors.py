"""Configuration errors in one sentence: key, value and expectation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from qlm.domain.errors import QlmError
from qlm.domain.shown import shown
from qlm.gateway.api.suggestions import suggestion


class ConfigError(QlmError):
    """Invalid configuration; the message names file, key, value and expectation."""


LINES_MAX: Final = 20
"""Mistakes of a file that are shown."""

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


def invalid_file(
    where: str,
    error: ValidationError,
    schema: type[BaseModel],
    by_name: Callable[[Steps], Steps] = lambda steps: steps,
    *,
    whole: str = "it",
    beside: Sequence[str] = (),
) -> ConfigError:
    """Return one error with a line for each mistake that pydantic found.

    Args:
        where: The file, at the beginning of each line.
        error: The mistakes.
        schema: What was expected.
        by_name: Changes the path that is shown.
        whole: Subject of mistakes that are in no key.
        beside: Further mistakes that are in no key.
    """
    lines = []
    for each in _mistakes(error.errors(include_url=False)):
        key = ".".join(str(step) for step in by_name(each["loc"])) or whole
        unknown = each["type"] == "extra_forbidden"
        several = getattr(each.get("ctx", {}).get("error"), "mistakes", ())
        lines += [f"{key} {one}" for one in several] or [
            _sentence(key, each) + (suggestion(schema, each["loc"]) if unknown else "")
        ]
    lines += [line for one in beside if (line := f"{whole} {one}") not in lines]
    more = [f"({len(lines) - LINES_MAX} more)"] if len(lines) > LINES_MAX else []
    return ConfigError("\n".join(f"{where}: {line}" for line in (*lines[:LINES_MAX], *more)))


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
        return f"{key} {first['ctx']['error']!s}".lstrip()
    if kind == "missing":
        return f"{key} is missing; expected a value"
    if kind == "extra_forbidden":
        return f"{key} is {value}; expected no key of this name"
    template = _EXPECTED.get(kind)
    expected = template.format(**first.get("ctx", {})) if template else first["msg"].lower()
    return f"{key} is {value}; expected {expected}"

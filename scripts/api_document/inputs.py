"""Parameters of routes: names, types and limits as the HTTP reference says them in words."""

import re
from collections.abc import Iterator
from typing import Any, Final

from scripts.reference_pages.fields import NoMeaningError
from scripts.reference_pages.http_inputs import input_rows
from scripts.reference_pages.http_routes import Route

_TYPES: Final = {"text": "string", "number": "number", "whole number": "integer"}

_RANGE: Final = re.compile(r"(-?[\d.]+) to ([\d.]+)(?: \([^)]*\))?")
_LENGTH: Final = re.compile(r"(?:(\d+) to |at most )(\d+) characters")
_CHOICE: Final = re.compile(r"`[^`]+`(?: or `[^`]+`)*")


def parameters(route: Route) -> Iterator[dict[str, Any]]:
    """Yield what a route reads beside its body.

    Raises:
        NoMeaningError: The limits of one are not in the words that are known here.
    """
    for name, place, kind, limits, meaning in input_rows(
        route.path, route.reached.headers, route.reached.query
    ):
        yield {
            "name": name.strip("`"),
            "in": place,
            "required": place == "path",
            "description": meaning,
            "schema": _schema(name, kind, limits),
        }


def _schema(name: str, kind: str, limits: str) -> dict[str, Any]:
    if limits == "any value" or limits.endswith("ignored"):
        return {"type": "string"}
    schema: dict[str, Any] = {"type": _TYPES[kind]}
    if found := _RANGE.fullmatch(limits):
        number = int if kind == "whole number" else float
        return schema | {"minimum": number(found[1]), "maximum": number(found[2])}
    if found := _LENGTH.fullmatch(limits):
        return schema | {"minLength": int(found[1] or 0), "maxLength": int(found[2])}
    if _CHOICE.fullmatch(limits):
        return schema | {"enum": re.findall(r"`([^`]+)`", limits)}
    if limits:
        raise NoMeaningError(
            f"the limits of {name}, {limits!r}, are in words that scripts/api_document does not know"
        )
    return schema

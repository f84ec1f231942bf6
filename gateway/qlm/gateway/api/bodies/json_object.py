"""The body of a request as a JSON object."""

from typing import Any, Final

import orjson

from qlm.gateway.api.errors import invalid

DEPTH_MAX: Final = 100
"""Levels of nested objects and lists in a body; what shows, compares or writes a body may be recursive."""


def parse_json(raw: bytes) -> dict[str, Any]:
    """Return a body as a JSON object.

    Raises:
        ApiError: It is not one.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise invalid(
            None, f"the body is not JSON: {error}; expected a JSON object", "invalid_json"
        ) from error
    if not isinstance(body, dict):
        raise invalid(None, f"the body is a {type(body).__name__}; expected a JSON object", "invalid_json")
    # Text has at least as many brackets as levels.
    if raw.count(b"[") + raw.count(b"{") > DEPTH_MAX and _is_deeper(body, DEPTH_MAX):
        expected = f"expected at most {DEPTH_MAX} levels of objects and lists"
        raise invalid(None, f"the body is nested too deeply; {expected}", "invalid_json")
    return body


def _is_deeper(body: dict[str, Any], depth_max: int) -> bool:
    """Return True if a JSON value has more than `depth_max` levels of objects and lists."""
    level: list[Any] = [body]
    for _ in range(depth_max):
        values = [list(each.values()) if isinstance(each, dict) else each for each in level]
        level = [value for each in values for value in each if isinstance(value, dict | list)]
        if not level:
            return False
    return True

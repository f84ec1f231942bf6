"""Lines of a batch's input: read, checked, counted."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import orjson

from qlm.domain.shown import cut
from qlm.gateway.api.bodies.json_object import parse_json
from qlm.gateway.api.errors import ApiError, shown

CUSTOM_ID_CHARACTERS_MAX: Final = 512

ERRORS_MAX: Final = 20
"""Errors of an input file that are reported."""

_OWN: Final = ("stream", "slo", "service_tier")
"""Fields that a batch decides for its lines."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a batch.

    Attributes:
        number: Its number in the file, from 1.
        custom_id: Its client's name for it.
        body: The body of its request.
    """

    number: int
    custom_id: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LineError:
    """What is wrong with the input of a batch.

    Attributes:
        code: A word for programs.
        message: The problem.
        line: Number of the line; None for the whole file.
        param: The field.
    """

    code: str
    message: str
    line: int | None = None
    param: str | None = None


def read_line(number: int, raw: bytes, endpoint: str) -> Line | LineError:
    """Return a line of the input, or what is wrong with it."""
    try:
        plain = parse_json(raw)
    except ApiError as error:
        return LineError("invalid_json_line", error.message, number)
    custom_id, body = plain.get("custom_id"), plain.get("body")
    if not (isinstance(custom_id, str) and 1 <= len(custom_id) <= CUSTOM_ID_CHARACTERS_MAX):
        expected = f"expected a text of 1 to {CUSTOM_ID_CHARACTERS_MAX} characters"
        return LineError(
            "invalid_custom_id", f"custom_id is {shown(custom_id)}; {expected}", number, "custom_id"
        )
    if plain.get("method") != "POST":
        return LineError(
            "invalid_method", f"method is {shown(plain.get('method'))}; expected POST", number, "method"
        )
    if plain.get("url") != endpoint:
        message = f"url is {shown(plain.get('url'))}; expected {endpoint}, the endpoint of the batch"
        return LineError("invalid_url", message, number, "url")
    if not isinstance(body, dict):
        return LineError("invalid_body", f"body is {shown(body)}; expected an object", number, "body")
    for name in _OWN:
        if body.get(name):
            message = f"{name} is {shown(body[name])}; expected no such field: the batch decides it"
            return LineError("invalid_body", message, number, f"body.{name}")
    return Line(number, custom_id, {name: value for name, value in body.items() if name not in _OWN})


def raw_lines(file: BinaryIO, bytes_max: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank with their numbers; one that is too long comes cut."""
    number = 0
    while raw := file.readline(bytes_max + 1):
        number += 1
        if len(raw) > bytes_max:
            while raw and not raw.endswith(b"\n"):
                raw = file.readline(bytes_max)
            yield number, b""
        elif raw.strip():
            yield number, raw


def check(file: BinaryIO, endpoint: str, lines_max: int, bytes_max: int) -> tuple[int, list[LineError]]:
    """Return the number of lines of an input file, and what is wrong with it; it blocks."""
    count, errors, names = 0, list[LineError](), set[str]()
    for number, raw in raw_lines(file, bytes_max):
        count += 1
        if count > lines_max:
            message = f"the file has more than {lines_max} lines; expected at most that"
            return count, [LineError("too_many_lines", message)]
        found = read_line(number, raw, endpoint) if raw else _too_long(number, bytes_max)
        if isinstance(found, Line) and found.custom_id in names:
            message = f"custom_id is {cut(found.custom_id)}, as of an earlier line; expected each once"
            found = LineError("duplicate_custom_id", message, number, "custom_id")
        if isinstance(found, Line):
            names.add(found.custom_id)
        else:
            errors.append(found)
            if len(errors) >= ERRORS_MAX:
                break
    if not count:
        errors.append(LineError("empty_file", "the file has no lines; expected at least one"))
    return count, errors


def answered(lines: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of a part of the output with their custom ids; what was cut off is left out."""
    for raw in lines:
        try:
            custom_id = orjson.loads(raw)["custom_id"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            continue
        if raw.endswith(b"\n"):
            yield custom_id, raw


def _too_long(number: int, bytes_max: int) -> LineError:
    message = f"the line has more than {bytes_max} bytes; expected at most that"
    return LineError("line_too_long", message, number)

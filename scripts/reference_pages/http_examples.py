"""Requests and their answers as `python -m scripts.record_examples` recorded them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).with_name("http_examples.json")
_WIDTH: Final = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A request and its answer.

    Attributes:
        route: Method and path of the route, with parameters in braces.
        path: The path that was asked for, with its query.
        sent_headers: Headers of the request, but for the usual ones.
        sent: Its body; None if it had none.
        status: Of the answer.
        headers: Of the answer, but for the usual ones.
        body: Of the answer: what was read of its JSON, or text.
    """

    route: str
    path: str
    sent_headers: Mapping[str, str]
    sent: Any
    status: int
    headers: Mapping[str, str]
    body: Any


@cache
def examples() -> Sequence[Example]:
    """Read all examples."""
    return [Example(**each) for each in json.loads(FILE.read_text("utf-8"))]


def examples_of(route: str) -> Iterator[str]:
    """Show the examples of a route."""
    for example in examples():
        if example.route == route:
            yield f"```sh\n{_command(example)}\n```"
            yield f"```http\n{_answer(example)}\n```"


def _command(example: Example) -> str:
    method = example.route.partition(" ")[0]
    usual = "GET" if example.sent is None else "POST"
    port = 8090 if example.path.startswith("/admin/") else 8000
    words = ["curl", *([] if method == usual else ["-X", method]), f"localhost:{port}{example.path}"]
    if "?" in example.path:
        words[-1] = f"'{words[-1]}'"
    given = {**({} if example.sent is None else {"content-type": "application/json"}), **example.sent_headers}
    words += [f"-H '{name}: {value}'" for name, value in given.items()]
    if example.sent is None:
        return " ".join(words)
    body = in_lines(example.sent).replace("'", "'\\''")
    return f"{' '.join(words)} -d '{body}'"


def _answer(example: Example) -> str:
    first = f"HTTP/1.1 {example.status} {HTTPStatus(example.status).phrase}"
    headers = [f"{name}: {value}" for name, value in example.headers.items()]
    body = example.body if isinstance(example.body, str) else in_lines(example.body)
    return "\n".join([first, *headers, "", body.rstrip()])


def in_lines(value: Any, indent: str = "") -> str:
    """Write JSON with each object or list in one line where it has room there."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(flat) <= _WIDTH or not isinstance(value, dict | list) or not value:
        return flat
    below = indent + "  "
    if isinstance(value, list):
        inner = [in_lines(each, below) for each in value]
        return "[\n" + ",\n".join(below + each for each in inner) + f"\n{indent}]"
    lines = [f"{json.dumps(name)}: {in_lines(each, below)}" for name, each in value.items()]
    return "{\n" + ",\n".join(below + line for line in lines) + f"\n{indent}}}"

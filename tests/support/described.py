"""Holds what a gateway answers against its HTTP reference."""

import dataclasses
import enum
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from typing import Any, Final

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qlm.gateway.api.fields.messages_api import MessageErrorAnswer
from qlm.gateway.api.fields.openai import ErrorAnswer
from scripts.reference_pages.http import ANSWER_HEADERS, OF_EVERY_ROUTE
from scripts.reference_pages.http_routes import Route, routes

USUAL: Final = {"content-type", "content-length", "cache-control", "x-accel-buffering", "allow"}
"""Headers that HTTP itself describes."""

OF_ALL: Final = OF_EVERY_ROUTE | {("404", "not_found"), ("405", "method_not_allowed")}
"""Errors that every route may answer with."""


OF_KEYS: Final = frozenset({("503", "store_unavailable")})
"""Errors of every route that asks for an API key, while keys cannot be read."""


class Watched:
    """An application of which each answer is compared with the reference."""

    def __init__(self, app: ASGIApp, problems: list[str], *, asks_for_keys: bool = False) -> None:
        self._app = app
        self._known = OF_ALL | (OF_KEYS if asks_for_keys else set())
        self._problems = problems

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start: Message = {}
        body = bytearray()

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                body.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    self._note(scope, start, bytes(body))
            await send(message)

        await self._app(scope, receive, noting)

    def _note(self, scope: Scope, start: Message, body: bytes) -> None:
        if scope["method"] == "OPTIONS" and start["status"] == 200:
            return  # a preflight, as CORS describes it
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        where = f"{scope['method']} {scope['path']} {start['status']}"
        found = undescribed(method, scope["path"], start["status"], headers, body, self._known)
        self._problems.extend(f"{where}: {each}" for each in found)


@cache
def _routes() -> list[tuple[re.Pattern[str], Route]]:
    return [
        (re.compile(re.sub(r"\\\{\w+\\\}", ".+", re.escape(route.path)), re.DOTALL), route)
        for route in routes()
    ]


def route_of(method: str, path: str) -> Route | None:
    """Find the route of a path; that with the longest path if several could be."""
    found = [each for pattern, each in _routes() if each.method == method and pattern.fullmatch(path)]
    return max(found, key=lambda each: len(each.path), default=None)


def undescribed(
    method: str,
    path: str,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    of_all: Set[tuple[str, str]] = OF_ALL,
) -> Iterator[str]:
    """Yield what of an answer is not as the reference says."""
    yield from (f"header {name}" for name in headers.keys() - ANSWER_HEADERS - USUAL)
    route = route_of(method, path)
    shapes = () if route is None else route.answers.get(status, ())
    if headers["content-type"].startswith("text/event-stream"):
        yield from _events(body, shapes)
    elif headers["content-type"] != "application/json":
        yield from () if None in shapes else (f"content-type {headers['content-type']}",)
    else:
        content = orjson.loads(body)
        # Another status than 200 may be both, a shape and an error.
        found = [list(differences(content, each, "")) for each in shapes if each is not None]
        if not found or min(map(len, found)) > 0:
            yield from (
                _error(route, status, content, of_all)
                if status >= 400
                else min(found, default=["its status"])
            )


def _error(route: Route | None, status: int, content: Any, of_all: Set[tuple[str, str]]) -> Iterator[str]:
    shape = MessageErrorAnswer if route is not None and route.path.startswith("/v1/messages") else ErrorAnswer
    if wrong := list(differences(content, shape, "")):
        yield from wrong
        return
    known = of_all | (set() if route is None else {each[:2] for each in route.errors})
    if (str(status), code := content["error"]["code"]) not in known:
        yield f"code {code}"


def _events(body: bytes, shapes: Sequence[Any]) -> Iterator[str]:
    for block in body.decode().split("\n\n"):
        data = [line[6:] for line in block.splitlines() if line.startswith("data: ")]
        if not data or data == ["[DONE]"]:
            continue
        # Of `error`, some APIs have events of their own.
        errors = (ErrorAnswer, MessageErrorAnswer, *shapes)
        expected = errors if "event: error" in block else shapes
        found = [list(differences(orjson.loads(data[0]), each, "")) for each in expected]
        yield from min(found, key=len, default=["its events"])


def differences(value: Any, annotation: Any, path: str) -> Iterator[str]:
    """Yield what of a value is not as a type says; objects must have the fields of theirs, and no others."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        yield from min((list(differences(value, each, path)) for each in arguments), key=len)
    elif typing.is_typeddict(annotation) or dataclasses.is_dataclass(annotation):
        yield from _of_object(value, annotation, path)
    elif origin is Sequence and isinstance(value, list):
        for at, each in enumerate(value):
            yield from differences(each, arguments[0], f"{path}[{at}]")
    elif origin is Mapping and isinstance(value, dict):
        for name, each in value.items():
            yield from differences(each, arguments[1], f"{path}.{name}")
    elif not _is(value, annotation):
        yield f"{path} is {value!r}, described as {annotation}"


def _of_object(value: Any, shape: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path} is {value!r}, described as an object"
        return
    hints = typing.get_type_hints(shape, include_extras=True)
    optional = {name for name, each in hints.items() if typing.get_origin(each) is typing.NotRequired}
    yield from (f"{path}.{name} is not described" for name in value.keys() - hints.keys())
    yield from (f"{path}.{name} is missing" for name in hints.keys() - optional - value.keys())
    for name in value.keys() & hints.keys():
        kind = typing.get_args(hints[name])[0] if name in optional else hints[name]
        yield from differences(value[name], kind, f"{path}.{name}")


def _is(value: Any, annotation: Any) -> bool:
    if annotation is Any:
        return True
    if typing.get_origin(annotation) is typing.Literal:
        return value in typing.get_args(annotation)
    if not isinstance(annotation, type):
        return False
    if issubclass(annotation, enum.Enum):
        return value in {each.value for each in annotation}
    if annotation in (int, float):
        kinds = (int,) if annotation is int else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool)
    return isinstance(value, annotation)

"""One part of a page per route: its inputs and its answers."""

import inspect
import re
import types
import typing
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeVar

from starlette.responses import Response

from qlm.gateway.api.fields.messages_api import MessageEvent, MessageObject
from qlm.gateway.api.fields.openai import ChatChunk, ChatCompletion, TextChunk, TextCompletion
from qlm.gateway.api.fields.requests import AcceptedRequest
from qlm.gateway.api.fields.responses_api import ResponseEvent, ResponseObject
from qlm.gateway.http.responses import Html, Json, StoredJson, StreamAnswer, WholeAnswer
from qlm.gateway.http.routes import ADMIN_ROUTES, PUBLIC_ROUTES
from scripts.reference_pages.errors import Error
from scripts.reference_pages.fields import NoMeaningError
from scripts.reference_pages.http_examples import examples_of
from scripts.reference_pages.http_inputs import HEAD, input_rows
from scripts.reference_pages.markdown import table
from scripts.reference_pages.reach import Reached, reached

_UNIONS: Final = (typing.Union, types.UnionType)

_WHOLE: Final[Mapping[str, type]] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": TextCompletion,
    "/v1/responses": ResponseObject,
    "/v1/messages": MessageObject,
}

_CHUNKS: Final[Mapping[str, Sequence[type]]] = {
    "/v1/chat/completions": [ChatChunk],
    "/v1/completions": [TextChunk],
    "/v1/requests/{id}/events": [ChatChunk, TextChunk],
    "/v1/responses": [ResponseEvent],
    "/v1/messages": [MessageEvent],
    "/v1/responses/{id}": [ResponseEvent],
}

TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "/metrics": ("text/plain", "text in Prometheus' format"),
    "/docs": ("text/html", "a page"),
    "/v1/files/{id}/content": ("application/octet-stream", "the bytes of the file"),
}
"""Media type of answers without fields, and what they are."""

_CANNOT: Final = {"POST /admin/v1/dead/retry": {"letter_unreadable"}}
"""Errors that the analysis finds but the route cannot answer with: it takes readable letters only."""

_WHEN: Final[Mapping[type, str]] = {
    ChatChunk: "as a stream, each event: ",
    TextChunk: "as a stream, each event: ",
    MessageEvent: "as a stream, each event: ",
    ResponseEvent: "as a stream, each event: ",
    AcceptedRequest: "with `prefer: respond-async`: ",
}

STATUS: Final[Mapping[str, str]] = {
    "400": "the request is invalid",
    "404": "not found",
    "409": "conflict with the present state",
    "413": "the body is too large",
    "422": "the key was used with another body",
    "429": "refused for now",
    "499": "cancelled while its client waited",
    "500": "the request failed",
    "503": "unavailable now",
    "504": "its deadline passed, and it asked to be dropped then",
}


@dataclass(frozen=True, slots=True)
class Route:
    """The description of a route.

    Attributes:
        method: HTTP method.
        path: With its parameters in braces.
        query: Its query parameters, as written after the path.
        about: Its answer in a few words.
        answers: Shapes of good answers, by status; None for what has no fields.
        reached: Errors, headers and parameters of its handler.
        of_operators: The listener of operators serves it, and not that of clients.
        handler: The function that answers.
    """

    method: str
    path: str
    query: str
    about: str
    answers: Mapping[int, Sequence[type | None]]
    reached: Reached
    of_operators: bool
    handler: Any

    @property
    def name(self) -> str:
        """Method and path."""
        return f"{self.method} {self.path}"

    @property
    def errors(self) -> set[Error]:
        """Its errors, except those of every route."""
        return {each for each in self.reached.errors if each[1] not in _CANNOT.get(self.name, ())}

    @property
    def statuses(self) -> list[str]:
        """Its statuses, except those of every route."""
        return sorted({*map(str, self.answers), *(status for status, *_ in self.errors)})


def routes() -> list[Route]:
    """Describe all routes of both listeners."""
    return [
        _route(method, path, handler, of_operators=served is ADMIN_ROUTES)
        for served in (PUBLIC_ROUTES, ADMIN_ROUTES)
        for method, path, handler in served
    ]


def _route(method: str, path: str, handler: Any, *, of_operators: bool) -> Route:
    plain = path.replace(":path}", "}")
    said = " ".join((inspect.getdoc(handler) or "").partition("\n\n")[0].split())
    found = re.fullmatch(rf"Answer {method} {re.escape(plain)}(\?[\w&=]+)?: (.+)\.", said)
    if found is None:
        raise NoMeaningError(
            f"the docstring of {handler.__name__} does not begin with `Answer {method} {plain}: ...`"
        )
    answers = _answers(plain, handler)
    return Route(method, plain, found[1] or "", found[2], answers, reached(handler), of_operators, handler)


def _answers(path: str, handler: Any) -> Mapping[int, Sequence[type | None]]:
    answers: dict[int, list[type | None]] = defaultdict(list)
    annotated = typing.get_type_hints(handler)["return"]
    for each in typing.get_args(annotated) if typing.get_origin(annotated) in _UNIONS else (annotated,):
        kind = typing.get_origin(each) or each
        if kind is WholeAnswer:
            answers[HTTPStatus.OK].append(_of(path, _WHOLE, "_WHOLE"))
        elif kind is StreamAnswer:
            answers[HTTPStatus.OK] += _of(path, _CHUNKS, "_CHUNKS")
        elif issubclass(kind, Json | StoredJson):
            answers[kind.STATUS].append(typing.get_args(each)[0])
        elif kind in (Response, Html):
            _of(path, TEXTS, "TEXTS")
            answers[HTTPStatus.OK].append(None)
        else:
            raise NoMeaningError(f"{handler.__name__} answers with {each}, which is not described")
    return {status: tuple(dict.fromkeys(shapes)) for status, shapes in answers.items()}


_Of = TypeVar("_Of")


def _of(path: str, said: Mapping[str, _Of], where: str) -> _Of:
    if path not in said:
        raise NoMeaningError(
            f"the answers of {path} are not in {where} of scripts/reference_pages/http_routes.py"
        )
    return said[path]


def is_event(shape: type | None) -> bool:
    """Return whether this is the data of an event of a stream."""
    return any(shape in shapes for shapes in _CHUNKS.values())


def route_part(route: Route, places: Mapping[type, str], accepts: str = "") -> Iterator[str]:
    """Describe a route.

    Args:
        route: The route.
        places: Where shapes are described.
        accepts: Its body, in words.
    """
    yield f"## `{route.name}`"
    yield f"{route.about[0].upper()}{route.about[1:]}."
    yield accepts
    if inputs := list(input_rows(route.path, route.reached.headers, route.reached.query)):
        yield table(HEAD, inputs)
    yield table(("status", "answer"), _status_rows(route, places))
    yield from examples_of(route.name)


def _status_rows(route: Route, places: Mapping[type, str]) -> Iterator[tuple[str, str]]:
    codes: dict[str, set[str]] = defaultdict(set)
    for status, code, *_ in route.errors:
        codes[status].add(code)
    for each in route.statuses:
        shapes = route.answers.get(int(each), ())
        said = "; ".join(_named(shape, places, route.path) for shape in shapes)
        errors = ", ".join(f"`{code}`" for code in sorted(codes[each]))
        yield (
            each,
            "; ".join([*([said] if said else []), *([f"{STATUS[each]}: {errors}"] if errors else [])]),
        )


def _named(shape: type | None, places: Mapping[type, str], path: str) -> str:
    if shape is None:
        return TEXTS[path][1]
    return f"{_WHEN.get(shape, '')}{places[shape]}"

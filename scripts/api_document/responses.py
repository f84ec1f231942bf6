"""Responses of routes: what they answer, their headers, and their errors with all codes."""

import re
import typing
from collections.abc import Iterator
from typing import Final

from qlm.gateway.api.fields.messages_api import MessageErrorAnswer
from qlm.gateway.api.fields.openai import ErrorAnswer
from qlm.gateway.http.messages_api.errors import MESSAGES
from qlm.gateway.http.responses import WholeAnswer
from scripts.api_document.answers import Schema, Schemas, any_of, one_of
from scripts.reference_pages.http import HEADER_ROWS, OF_CONNECTIONS, OF_EVERY_ROUTE
from scripts.reference_pages.http_routes import STATUS, TEXTS, Route, is_event

_REF: Final = "#/components/responses/"
_HEADER: Final = "#/components/headers/"

_OF_OPERATORS: Final = frozenset({"admin_token_required", "no_admin_token"})
_ELSEWHERE: Final = frozenset({"moved_to_admin", "endpoint_not_supported"})
"""Errors of paths that are no routes of the listener."""

_NO_SUCH: Final = frozenset({("404", "not_found"), ("405", "method_not_allowed")})
"""Errors of paths that a parameter with a slash in it makes."""


class Responses:
    """The responses that a document shares: those with errors of every route alone."""

    def __init__(self, schemas: Schemas, *, of_operators: bool) -> None:
        left_out = _ELSEWHERE if of_operators else _ELSEWHERE | _OF_OPERATORS
        self._of_all = {(status, code) for status, code in OF_EVERY_ROUTE if code not in left_out}
        self._schemas = schemas
        self.by_name: dict[str, Schema] = {}
        self.headers: dict[str, Schema] = {}

    def of_route(self, route: Route) -> Schema:
        """Return the responses of a route by status."""
        own = {(status, code) for status, code, *_ in route.errors}
        own |= _NO_SUCH if "{" in route.path else set()
        statuses = {*map(str, route.answers), *(status for status, _ in own | self._of_all)}
        return {status: self._of_status(route, status, own) for status in sorted(statuses)}

    def _of_status(self, route: Route, status: str, own: set[tuple[str, str]]) -> Schema:
        codes = sorted(code for of, code in own | self._of_all if of == status)
        own_shape = _error_shapes(route) != _error_shapes(None)
        if own_shape or int(status) in route.answers or any(of == status for of, _ in own):
            return self._response(status, codes, dict(self._answers(route, status)), route)
        if status not in self.by_name:
            self.by_name[status] = self._response(status, codes, {}, None)
        return {"$ref": _REF + status}

    def _response(
        self, status: str, codes: list[str], content: dict[str, Schema], route: Route | None
    ) -> Schema:
        said = "The answer" if content else ""
        if codes:
            json = content.pop("application/json", {}).get("schema")
            content["application/json"] = {
                "schema": any_of([*([json] if json is not None else []), *self._errors(codes, route)])
            }
            named = ", ".join(f"`{code}`" for code in codes)
            failure = f"{STATUS.get(status, 'refused')}: {named}"
            said = f"{said}; {failure}" if said else f"{failure[0].upper()}{failure[1:]}"
        headers = {name: self._header(name, meaning) for name, meaning in _headers(route, status)}
        return {"description": f"{said}.", "headers": headers, "content": content}

    def _answers(self, route: Route, status: str) -> Iterator[tuple[str, Schema]]:
        """Yield good answers by media type."""
        shapes = route.answers.get(int(status), ())
        whole = [self._schemas.of(each) for each in shapes if each is not None and not is_event(each)]
        if whole:
            yield "application/json", {"schema": any_of(whole)}
        if events := [self._schemas.of(each) for each in shapes if is_event(each)]:
            error = self._schemas.of(_error_shapes(route)[0])
            yield "text/event-stream", {"schema": _event(any_of([*events, error]))}
        if None in shapes:
            yield TEXTS[route.path][0], {"schema": {"type": "string"}}

    def _errors(self, codes: list[str], route: Route | None) -> Iterator[Schema]:
        code = {"type": "object", "properties": {"code": one_of(codes)}}
        error = {"type": "object", "properties": {"error": code}}
        for shape in _error_shapes(route):
            yield {"allOf": [self._schemas.of(shape), error]}

    def _header(self, name: str, meaning: str) -> Schema:
        self.headers[name] = {"description": meaning, "schema": {"type": "string"}}
        return {"$ref": _HEADER + name}


def _error_shapes(route: Route | None) -> tuple[type, ...]:
    """Return the shapes of a route's errors, its own first; those of connections are the same everywhere."""
    own = (MessageErrorAnswer,) if route is not None and route.path.startswith(MESSAGES) else ()
    return (*own, ErrorAnswer)


def _event(data: Schema) -> Schema:
    """Return the schema of one event: before OpenAPI 3.2 it stands in place of that of the stream."""
    json = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    fields = {
        "data": {"anyOf": [json, {"const": "[DONE]"}], "description": "The event; `[DONE]` ends the stream."},
        "event": {"type": "string", "description": "`error` for an error, whose data is one."},
        "id": {"type": "string", "description": "Output tokens so far, in resumable streams."},
    }
    return {"type": "object", "description": "An event.", "properties": fields, "required": ["data"]}


def _headers(route: Route | None, status: str) -> Iterator[tuple[str, str]]:
    for name, of, meaning in HEADER_ROWS:
        if _has_header(of, route, status):
            yield name, meaning


def _has_header(of: str, route: Route | None, status: str) -> bool:
    if of == "all answers" or status in re.findall(r"\b\d{3}\b(?! of)", of):
        return True
    if status in OF_CONNECTIONS.values() and "limits of connections" in of:
        return True
    if route is None:
        return False
    if of == route.path:
        return status == "200"
    if of == "whole answers":
        return status == "200" and WholeAnswer in typing.get_args(
            typing.get_type_hints(route.handler)["return"]
        )
    if of == "202 of a request":
        return status == "202" and 200 in route.answers
    return "bad ends" in of and status in {each for each, *_ in route.errors}

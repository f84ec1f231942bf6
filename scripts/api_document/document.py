"""The documents of the API in OpenAPI 3.1, one for each listener.

They are made of what the HTTP reference is made of: the routes, the annotations and docstrings of their
handlers, the bodies that these declare with `accepts`, and the errors that the analysis of the code finds.
"""

from collections import defaultdict
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from qlm.gateway.http.document.accepts import accepted_bodies
from qlm.gateway.http.routes import ADMIN_DOCUMENT_ROUTES, HEALTH_ROUTES
from scripts.api_document.answers import Schema, Schemas
from scripts.api_document.bodies import body_schema
from scripts.api_document.inputs import parameters
from scripts.api_document.responses import Responses
from scripts.reference_pages.fields import NoMeaningError
from scripts.reference_pages.http_examples import examples, in_lines
from scripts.reference_pages.http_routes import Route, routes

_READS_BODY: Final = "body_too_large"
"""Error of every route that reads a body."""

_ABOUT: Final[Mapping[bool, str]] = {
    False: "What clients of a QLM gateway can call: OpenAI's routes with a deadline, and requests that last.",
    True: "What operators of a QLM gateway can call, on the listener of `admin`.",
}


def document(*, of_operators: bool) -> dict[str, Any]:
    """Return the document of one listener.

    Raises:
        NoMeaningError: The code says too little of a route; the message names it and what is missing.
    """
    schemas = Schemas()
    responses = Responses(schemas, of_operators=of_operators)
    paths: dict[str, dict[str, Any]] = defaultdict(dict)
    served = [route for route in routes() if _is_served(route, of_operators)]
    for route in served:
        paths[route.path][route.method.lower()] = _operation(route, schemas, responses)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "QLM for operators" if of_operators else "QLM",
            "version": version("qlm-serving"),
            "description": _ABOUT[of_operators],
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in dict.fromkeys(_tag(route) for route in served)],
        "paths": dict(paths),
        "components": {
            "schemas": dict(sorted(schemas.by_name.items())),
            "responses": dict(sorted(responses.by_name.items())),
            "headers": responses.headers,
        },
    }


def _is_served(route: Route, of_operators: bool) -> bool:
    if not of_operators:
        return not route.of_operators
    both = {f"{method} {path}" for method, path, _ in (*HEALTH_ROUTES, *ADMIN_DOCUMENT_ROUTES)}
    return route.of_operators or route.name in both


def _tag(route: Route) -> str:
    return str(route.handler.__module__).rpartition(".")[2].replace("_", " ")


def _operation(route: Route, schemas: Schemas, responses: Responses) -> Schema:
    operation: Schema = {
        "operationId": route.handler.__name__,
        "summary": f"{route.about[0].upper()}{route.about[1:]}",
        "tags": [_tag(route)],
    }
    if inputs := list(parameters(route)):
        operation["parameters"] = inputs
    if (body := _body(route, schemas)) is not None:
        operation["requestBody"] = body
    operation["responses"] = responses.of_route(route)
    return operation


def _body(route: Route, schemas: Schemas) -> Schema | None:
    declared = accepted_bodies(route.handler)
    if not declared:
        if any(code == _READS_BODY for _, code, *_ in route.errors):
            raise NoMeaningError(
                f"{route.name} reads a body that the document of the API does not have: "
                f"put @accepts(...) above {route.handler.__name__}, see qlm.gateway.http.document.accepts"
            )
        return None
    content: Schema = {"schema": body_schema(declared, schemas)}
    sent = next(
        (each.sent for each in examples() if each.route == route.name and each.sent is not None), None
    )
    if sent is not None:
        content["example"] = sent
    return {"required": True, "content": {declared[0].media_type: content}}


def document_text(*, of_operators: bool) -> str:
    """Return the document of one listener as it is served."""
    return in_lines(document(of_operators=of_operators)) + "\n"

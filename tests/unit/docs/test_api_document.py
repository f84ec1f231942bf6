"""The documents of the API are complete, valid OpenAPI 3.1, and true of the recorded examples."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import BaseModel
from starlette.requests import Request as HttpRequest

from qlm.gateway.api.bodies.json_object import parse_json
from qlm.gateway.api.fields.service import Health
from qlm.gateway.http.completions import read_body
from qlm.gateway.http.document.accepts import accepts
from qlm.gateway.http.responses import Json
from qlm.gateway.http.routes import (
    ADMIN_DOCUMENT_ROUTES,
    ADMIN_ROUTES,
    HEALTH_ROUTES,
    PUBLIC_ROUTES,
    Handler,
    Routes,
)
from qlm.gateway.sessions.gateway import Gateway
from scripts.api_document.document import document
from scripts.reference import DOCUMENTS, DOCUMENTS_FOLDER
from scripts.reference_pages import http_routes
from scripts.reference_pages.fields import NoMeaningError
from scripts.reference_pages.http_examples import Example, examples

SERVED: Mapping[str, Routes] = {
    "openapi.json": PUBLIC_ROUTES,
    "openapi-admin.json": (*HEALTH_ROUTES, *ADMIN_DOCUMENT_ROUTES, *ADMIN_ROUTES),
}


@cache
def written(name: str) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads((DOCUMENTS_FOLDER / name).read_bytes())
    return document


@pytest.mark.parametrize("name", DOCUMENTS)
def test_document_is_current(name: str) -> None:
    assert (DOCUMENTS_FOLDER / name).read_text("utf-8") == DOCUMENTS[name](), "run `make reference`"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_document_is_valid(name: str) -> None:
    OpenAPIV31SpecValidator(written(name)).validate()
    for schema in written(name)["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_route_of_the_code_is_in_the_document_and_no_other(name: str) -> None:
    paths = written(name)["paths"]
    documented = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert documented == {(method, path.replace(":path}", "}")) for method, path, _ in SERVED[name]}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_operation_names_its_errors_and_every_part_is_described(name: str) -> None:
    ids = set()
    for path, operation in operations(name):
        ids.add(operation["operationId"])
        assert operation["summary"], path
        assert {"400", "403", "421", "500", "503"} <= operation["responses"].keys()
        assert all(each["description"] for each in operation.get("parameters", ()))
    assert len(ids) == len(list(operations(name)))
    for schema in written(name)["components"]["schemas"].values():
        assert schema["description"]
        assert all(field["description"] for field in schema.get("properties", {}).values())


def operations(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in written(name)["paths"].items():
        yield from ((path, operation) for operation in methods.values())


@pytest.mark.parametrize("example", examples(), ids=lambda each: f"{each.route} {each.status}")
def test_recorded_answers_and_bodies_are_as_documented(example: Example) -> None:
    name = "openapi-admin.json" if example.path.startswith("/admin") else "openapi.json"
    method, path = example.route.split()
    operation = written(name)["paths"][path][method.lower()]
    if example.sent is not None and example.status != 400:
        check(name, operation["requestBody"]["content"]["application/json"]["schema"], example.sent)
    response = operation["responses"][str(example.status)]
    if "$ref" in response:
        response = written(name)["components"]["responses"][response["$ref"].rpartition("/")[2]]
    media_type = example.headers.get("content-type", "application/json").partition(";")[0]
    content = response["content"][media_type]
    if media_type == "application/json":
        check(name, content["schema"], example.body)
    for data in re.findall(r"^data: (\{.*)$", str(example.body), re.MULTILINE):
        (of_data, _) = content["schema"]["properties"]["data"]["anyOf"]
        check(name, of_data["contentSchema"], orjson.loads(data))


def check(name: str, schema: dict[str, Any], value: object) -> None:
    """Check a value against a schema, whose references begin at the document."""
    Draft202012Validator(schema | {"components": written(name)["components"]}).validate(value)


class Sentence(BaseModel):
    """Words."""

    words: str = ""  # They


async def mute(gateway: Gateway, request: HttpRequest) -> Json[Health]:
    return Json({"status": "ok"})


async def undeclared(gateway: Gateway, request: HttpRequest) -> Json[Health]:
    """Answer POST /v1/words: nothing."""
    parse_json(await read_body(request, 1))
    return Json({"status": "ok"})


@accepts(Sentence, neutral={"tone": ("kind",)})
async def declared(gateway: Gateway, request: HttpRequest) -> Json[Health]:
    """Answer POST /v1/words: nothing."""
    return await undeclared(gateway, request)


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (mute, "the docstring of mute does not begin with `Answer POST /v1/words: ...`"),
        (undeclared, "POST /v1/words reads a body that the document of the API does not have: put @accepts"),
    ],
)
def test_a_route_that_says_too_little_of_itself_is_an_error(
    monkeypatch: pytest.MonkeyPatch, handler: Handler, message: str
) -> None:
    monkeypatch.setattr(http_routes, "PUBLIC_ROUTES", [("POST", "/v1/words", handler)])
    with pytest.raises(NoMeaningError, match=re.escape(message)):
        document(of_operators=False)


def test_a_handler_declares_its_body_beside_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_routes, "PUBLIC_ROUTES", [("POST", "/v1/words", declared)])
    schema = document(of_operators=False)["components"]["schemas"]["Sentence"]
    assert schema["properties"]["words"] == {
        "anyOf": [{"type": "string"}, {"type": "null"}],
        "default": "",
        "description": "They.",
    }
    assert schema["properties"]["tone"]["enum"] == [None, "kind"]
    assert schema["description"] == "Words."

"""docs/reference says what the code says."""

import re
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

import click
import orjson
import pytest
from pydantic import BaseModel, Field

from qlm.cli.config.settings import Config
from qlm.cli.main import main
from qlm.cli.scenario.sections import LimitsSection
from qlm.gateway.api.responses_api.body import TextFormat
from qlm.gateway.http.routes import ADMIN_ROUTES, PUBLIC_ROUTES
from scripts.reference import FOLDER, PAGES
from scripts.reference_pages import answer_fields
from scripts.reference_pages.answer_fields import bases
from scripts.reference_pages.cli import commands
from scripts.reference_pages.errors import error_rows
from scripts.reference_pages.fields import NoMeaningError, attributes, comments, rows
from scripts.reference_pages.http import OF_EVERY_ROUTE, OF_GRPC
from scripts.reference_pages.http_examples import Example, examples
from scripts.reference_pages.http_routes import routes
from scripts.reference_pages.http_shapes import ADMIN_TITLES, CLIENT_TITLES
from scripts.reference_pages.sections import sections
from support.described import route_of, undescribed


def a_refusal(code: str) -> dict[str, Any]:
    return {"error": {"message": "m", "type": "invalid_request_error", "param": None, "code": code}}


@pytest.mark.parametrize("name", PAGES)
def test_page_is_current(name: str) -> None:
    assert (FOLDER / name).read_text("utf-8") == PAGES[name](), "run `make reference`"


def test_the_folder_holds_no_other_page() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PAGES)


def test_every_section_and_key_of_the_configuration_is_described() -> None:
    text = (FOLDER / "configuration.md").read_text("utf-8")
    for path, model in sections(Config):
        assert f"`{path}`" in text
        assert all(f"\n| `{key}` |" in text for key in model.model_fields)
    assert all(f"\n| `{key}` |" in text for key in Config.model_fields)


def test_a_key_that_a_page_names_with_its_section_exists() -> None:
    known = {f"{path}.{key}" for path, model in sections(Config) for key in model.model_fields}
    known |= {f"limits.{key}" for key in LimitsSection.model_fields}
    known.add("http.route")  # an attribute of spans
    names = {path for path, _ in sections(Config)}
    for page in (*FOLDER.glob("*.md"), *FOLDER.parent.glob("*.md")):
        found = set(re.findall(r"`(\w+\.\w+)`", page.read_text("utf-8")))
        assert {each for each in found if each.split(".")[0] in names} <= known, page.name


def test_every_option_of_every_command_is_described() -> None:
    text = (FOLDER / "cli.md").read_text("utf-8")
    all_commands = [(name, command) for name, command in commands(main, "qlm") if command is not main]
    for (name, command), part in zip(all_commands, text.split("\n## ")[1:], strict=True):
        assert part.startswith(f"`{name}`\n")
        options = [each for each in command.params if isinstance(each, click.Option)]
        assert all(f"`{word}`" in part for option in options for word in option.opts)


def test_every_route_of_the_application_has_a_part_with_its_status_codes() -> None:
    text = (FOLDER / "http.md").read_text("utf-8") + (FOLDER / "http-admin.md").read_text("utf-8")
    parts = dict(re.findall(r"^## `([A-Z]+ /.*?)`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    served = {f"{method} {path.replace(':path', '')}" for method, path, _ in (*PUBLIC_ROUTES, *ADMIN_ROUTES)}
    assert parts.keys() == served == {route.name for route in routes()}
    for route in routes():
        part = parts[route.name]
        assert all(f"\n| {status} |" in part for status in route.statuses)
        assert all(f"`{code}`" in part for _, code, *_ in route.errors)
        for name in route.reached.headers | route.reached.query:
            assert f"\n| `{name}` |" in part


def test_every_error_in_the_code_is_some_routes() -> None:
    made = {(status, code.strip("`")) for status, code, *_ in error_rows()}
    answered = {(status, code) for route in routes() for status, code, *_ in route.errors}
    assert made - answered == (OF_EVERY_ROUTE | OF_GRPC) - answered
    assert made >= OF_EVERY_ROUTE | OF_GRPC
    assert answered - made == set()


def test_errors_of_a_route_are_those_that_its_handler_can_come_to() -> None:
    codes = {route.name: {code for _, code, *_ in route.errors} for route in routes()}
    assert codes["GET /v1/models"] == codes["GET /readyz"] == codes["GET /metrics"] == set()
    assert codes["GET /v1/models/{id}"] == {"model_not_found"}
    assert codes["POST /v1/completions"] >= {"queue_full", "expired", "gateway_stopping", "client_closed"}
    assert codes["GET /admin/v1/dead"] == {"invalid_value", "broker_unavailable"}
    assert "expired" not in codes["GET /v1/requests/{id}"], "there it is told in a body"


def test_every_field_of_every_answer_is_described_once() -> None:
    described = set(CLIENT_TITLES) | set(ADMIN_TITLES)
    for route in routes():
        assert all(
            each is None or each in described for answers in route.answers.values() for each in answers
        )
    for name, titles in (("http.md", CLIENT_TITLES), ("http-admin.md", ADMIN_TITLES)):
        text = (FOLDER / name).read_text("utf-8")
        for shape, title in titles.items():
            (part,) = re.findall(rf"^### {title}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
            own = set(get_type_hints(shape)) - {
                field for base in bases(shape) for field in get_type_hints(base)
            }
            assert all(f"\n| `{field}` |" in part for field in own)


def test_a_field_is_described_by_the_name_that_clients_send() -> None:
    keys = [key for key, *_ in rows(TextFormat, lambda _: "")]
    assert "`schema`" in keys and "`schema_`" not in keys


def test_a_field_of_an_answer_without_meaning_is_an_error() -> None:
    class Mute(TypedDict):
        """Nothing is said of what is inside."""

        word: str

    with pytest.raises(NoMeaningError, match=r"Mute\.word"):
        answer_fields.part(Mute, "Mute", {})


@pytest.mark.parametrize("example", examples(), ids=lambda each: f"{each.route} {each.status}")
def test_examples_are_as_described(example: Example) -> None:
    method, path = example.route.partition(" ")[0], example.path.partition("?")[0]
    route = route_of(method, path)
    assert route is not None and route.name == example.route
    body = example.body.encode() if isinstance(example.body, str) else orjson.dumps(example.body)
    headers = {"content-type": "application/json", **example.headers}
    assert list(undescribed(method, path, example.status, headers, body)) == []


def test_each_family_of_routes_has_an_example() -> None:
    shown = {example.route for example in examples()}
    for family in ("/v1/chat", "/v1/completions", "/v1/models", "/v1/requests", "/readyz"):
        assert any(f" {family}" in route for route in shown)
    for family in ("queues", "requests", "forecast", "controller", "instances", "dead"):
        assert any(f" /admin/v1/{family}" in route for route in shown)


@pytest.mark.parametrize(
    ("method", "path", "status", "body", "wrong"),
    [
        ("GET", "/healthz", 200, {"status": "ok"}, []),
        ("GET", "/healthz", 200, {"status": "well"}, [".status is 'well'"]),
        ("GET", "/healthz", 200, {"status": "ok", "since": 1}, [".since is not described"]),
        ("GET", "/healthz", 200, {}, [".status is missing"]),
        ("GET", "/healthz", 201, {"status": "ok"}, ["its status"]),
        ("GET", "/v1/models/x", 404, a_refusal("model_not_found"), []),
        ("GET", "/v1/models", 404, a_refusal("model_not_found"), ["code model_not_found"]),
        ("GET", "/nowhere", 404, a_refusal("not_found"), []),
        ("GET", "/admin/v1/controller", 200, {"leader": {"id": 1}}, [".leader is {'id': 1}"]),
    ],
)
def test_what_is_not_described_is_found(
    method: str, path: str, status: int, body: object, wrong: list[str]
) -> None:
    headers = {"content-type": "application/json", "x-request-id": "r"}
    found = list(undescribed(method, path, status, headers, orjson.dumps(body)))
    assert len(found) == len(wrong)
    assert all(each.startswith(start) for each, start in zip(found, wrong, strict=True))


def test_errors_are_found_with_their_messages() -> None:
    found = {(status, code): message for status, code, _, message in error_rows()}
    assert found["404", "`model_not_found`"] == "model is …; expected one of …"
    assert found["429", "`queue_full`"] == "… requests wait"
    assert found["504", "`expired`"] == "the request's deadline passed before it was answered"
    assert ("503", "`no_instance`") in found


class Sample(BaseModel):
    """A thing.

    Attributes:
        low: What it says,
            over two lines.
        names: Names.
        kind: Which one.
        inner: What is inside.
    """

    low: float = Field(1.5, gt=0, le=9)
    names: tuple[Annotated[str, Field(min_length=1, max_length=3)], ...] = Field((), max_length=2)
    kind: Literal["a", "b"] | None = None
    inner: dict[str, int] = Field(default_factory=dict)


def test_fields_in_words() -> None:
    assert rows(Sample, lambda model: model.__name__) == [
        ("`low`", "number", "`1.5`", "above 0, up to 9", "What it says, over two lines."),
        ("`names`", "list of texts", "none", "at most 2 of them, each 1 to 3 characters", "Names."),
        ("`kind`", "`a` or `b`", "none", "", "Which one."),
        ("`inner`", "mapping of texts to whole numbers", "none", "", "What is inside."),
    ]


def test_a_field_without_meaning_is_an_error() -> None:
    class Silent(Sample):
        other: int = 1

    with pytest.raises(NoMeaningError, match=r"Silent\.other"):
        rows(Silent, lambda model: model.__name__)


def test_attributes_of_a_docstring_end_with_their_section() -> None:
    assert attributes("A.\n\n    Attributes:\n        a: One.\n        b: Two\n            lines.\n") == {
        "a": "One.",
        "b": "Two lines.",
    }


class Commented(BaseModel):
    beside: int  # Says "#" once
    # It takes
    # two lines.
    above: int
    text: str = "# no comment"


def test_a_field_is_described_by_the_comment_beside_or_above_it() -> None:
    assert comments(Commented) == {"beside": 'Says "#" once.', "above": "It takes two lines."}

"""`structured_outputs`: one constraint that vLLM knows, or refused by name before anything is queued."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from qlm.gateway.api.bodies.constraints import completion_grammar
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.renamed import renamed
from qlm.gateway.api.responses_api.body import parse_response
from qlm.gateway.api.responses_api.chat import NAMES, as_chat
from qlm.gateway.api.schema import parse_chat, parse_completion

Parse = Callable[[dict[str, Any]], object]
BODIES: Mapping[str, tuple[Parse, dict[str, Any]]] = {
    "completion": (parse_completion, {"prompt": "Once"}),
    "chat": (parse_chat, {"messages": [{"role": "user", "content": "Hi"}]}),
    "response": (parse_response, {"input": "Hi"}),
}
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "null"}}}


@pytest.fixture(params=list(BODIES))
def refusal(request: pytest.FixtureRequest) -> Any:
    parse, body = BODIES[request.param]

    def refused(**fields: object) -> ApiError:
        with pytest.raises(ApiError) as caught:
            parse({**body, **fields})
        assert caught.value.status == 400
        return caught.value

    return refused


@pytest.mark.parametrize(
    ("constraint", "param", "expected"),
    [
        ({"choice": ["a"], "regexp": "b"}, "regexp", "expected no such field"),
        ({"jsn": {}}, "jsn", "did you mean json?"),
        ({"choice": "ab"}, "choice", "expected a valid list"),
        ({"choice": []}, "choice", "expected"),
        ({"choice": [1]}, "choice[0]", "expected a valid string"),
        ({"regex": 5}, "regex", "expected a valid string"),
        ({"json": "{"}, "json", "expected a JSON schema, or the text of one"),
        ({"json": 5}, "json", "expected"),
        ({"choice": ["a"], "regex": "a"}, "", "expected one of json, regex, choice, grammar, json_object"),
        ({"disable_any_whitespace": True}, "", "expected one of json, regex, choice, grammar, json_object"),
    ],
)
def test_a_wrong_constraint_is_refused_by_name(
    refusal: Any, constraint: dict[str, Any], param: str, expected: str
) -> None:
    error = refusal(structured_outputs=constraint)
    assert error.param == f"structured_outputs.{param}".removesuffix(".")
    assert expected in error.message


@pytest.mark.parametrize("kind", ["completion", "chat"])
def test_two_fields_cannot_both_constrain_an_answer(kind: str) -> None:
    parse, body = BODIES[kind]
    both = {"response_format": {"type": "json_object"}, "structured_outputs": {"choice": ["a"]}}
    with pytest.raises(ApiError) as caught:
        parse({**body, **both})
    assert caught.value.param == "structured_outputs"
    assert "none beside response_format" in caught.value.message


def test_an_error_of_a_response_has_its_names_for_both() -> None:
    own = {
        "input": "Hi",
        "text": {"format": {"type": "json_object"}},
        "structured_outputs": {"choice": ["a"]},
    }
    with pytest.raises(ApiError) as caught:
        parse_chat(as_chat(parse_response(own), own, ()))
    error = renamed(caught.value, NAMES)
    assert error.param == "structured_outputs"
    assert "none beside text.format" in error.message


@pytest.mark.parametrize(
    ("constraint", "sent"),
    [
        ({"choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"choice": ["a"], "regex": None, "json_object": False}, {"choice": ["a"]}),
        ({"regex": "[ab]+", "whitespace_pattern": " "}, {"regex": "[ab]+", "whitespace_pattern": " "}),
        ({"json": json.dumps(SCHEMA)}, {"json": SCHEMA}),
        ({"json": SCHEMA, "disable_any_whitespace": True}, {"json": SCHEMA, "disable_any_whitespace": True}),
        ({"json_object": True}, {"json_object": True}),
        ({"grammar": "root ::= 'a'"}, {"grammar": "root ::= 'a'"}),
        ({"structural_tag": "{}"}, {"structural_tag": "{}"}),
        ({}, None),
        ({"choice": None}, None),
    ],
)
def test_a_constraint_reaches_the_engine_as_it_was_given(
    constraint: dict[str, Any], sent: dict[str, Any] | None
) -> None:
    body = parse_completion({"prompt": "Once", "structured_outputs": constraint})
    assert body.structured_outputs is not None
    grammar = completion_grammar(None, body.structured_outputs.fields)
    assert (json.loads(grammar)["structured_outputs"] if grammar else None) == sent


def test_properties_stay_in_the_order_of_their_schema() -> None:
    body = parse_completion({"prompt": "Once", "structured_outputs": {"json": SCHEMA}})
    assert body.structured_outputs is not None
    assert json.dumps(SCHEMA, separators=(",", ":")) in completion_grammar(
        None, body.structured_outputs.fields
    )

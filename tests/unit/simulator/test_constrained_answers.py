"""Answers of emulated engines under a grammar."""

import json
from typing import Any

import pytest

from qlm.domain.byte_tokens import EOS_ID
from qlm.domain.errors import InvalidValueError
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.simulator.engine.generation import Generation, hashed_generation

START = hashed_generation(block_tokens=16, context_tokens=4096, mean_output_tokens=50)


def generated(constraint: dict[str, Any], prompt: bytes = b"prompt", max_tokens: int = 2000) -> Generation:
    grammar = json.dumps({"structured_outputs": constraint})
    sampling = Sampling(max_tokens=max_tokens, grammar=grammar)
    return START(EngineCall(call_id="c", prompt_ids=tuple(prompt), sampling=sampling))


def text(constraint: dict[str, Any], prompt: bytes = b"prompt") -> str:
    made = generated(constraint, prompt)
    *letters, last = made.ids or ()
    assert (last, made.finish) == (EOS_ID, "stop")
    return bytes(letters).decode()


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 9},
        "kind": {"enum": ["a", "b"]},
        "count": {"type": ["integer", "null"], "minimum": 12},
        "some": {"type": "array", "items": {"$ref": "#/$defs/part"}, "minItems": 2},
        "any": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "fixed": {"const": 7},
        "nothing": {"type": "null"},
    },
    "$defs": {"part": {"type": "object", "properties": {"next": {"$ref": "#/$defs/part"}}}},
}


def test_json_fits_its_schema_in_the_order_of_its_properties() -> None:
    value = json.loads(text({"json": SCHEMA}))
    assert list(value) == list(SCHEMA["properties"])
    assert len(value["name"]) == 9
    assert value["kind"] in ("a", "b")
    assert value["count"] >= 12
    assert len(value["some"]) == 2, "a definition that contains itself ends"
    assert value["any"] in (True, False)
    assert (value["fixed"], value["nothing"]) == (7, None)


def test_an_object_has_what_its_schema_requires_and_all_if_that_is_nothing() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}
    assert json.loads(text({"json": schema})).keys() == {"a", "b"}
    assert json.loads(text({"json": {**schema, "required": ["b"]}})).keys() == {"b"}


def test_a_schema_may_refer_to_itself_as_a_whole() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}, "n": {"const": 1}}, "required": ["n"]}
    assert json.loads(text({"json": {**schema, "required": ["n"]}})) == {"n": 1}
    assert json.loads(
        text({"json": {"properties": {"a": {"$ref": "#/$defs/x~1y"}}, "$defs": {"x/y": {"const": 2}}}})
    ) == {"a": 2}


def test_a_schema_may_come_as_text() -> None:
    assert json.loads(text({"json": json.dumps(SCHEMA)})) == json.loads(text({"json": SCHEMA}))


def test_answers_depend_on_the_prompt() -> None:
    word = {"json": {"type": "string"}}
    assert text(word) == text(word)
    assert text(word) != text(word, b"another")


def test_a_choice_and_a_json_object() -> None:
    assert text({"choice": ["yes", "no"]}) in ("yes", "no")
    assert isinstance(json.loads(text({"json_object": True})), dict)


def test_the_limit_cuts_the_answer_off() -> None:
    made = generated({"json": SCHEMA}, max_tokens=5)
    assert (made.output_tokens, made.finish) == (5, "length")


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": "a+"},
        {"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
        {"json": {"$ref": "#/$defs/none"}},
        {"json": {"$ref": 5}},
        {"json": {"type": "wat"}},
        {"json": {"type": []}},
        {"json": {"enum": []}},
        {"json": {"anyOf": []}},
        {"json": {"properties": ["a"]}},
        {"json": {"type": "integer", "minimum": "a"}},
        {"json": {"type": "array", "minItems": "a"}},
        {"json": {"type": "array", "minItems": 10**12}},
        {"json": {"type": "string", "minLength": 10**12}},
        {"json": {"type": "array", "minItems": 1000, "items": {"type": "array", "minItems": 1000}}},
        {"json": "no JSON"},
        {"json": "5"},
        {"choice": 5},
    ],
)
def test_what_is_not_emulated_is_refused(constraint: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError, match="structured_outputs"):
        generated(constraint)

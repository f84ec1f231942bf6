"""Constraints on answers, in the form in which engines get them (`Sampling.grammar`)."""

import contextlib
from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from qlm.gateway.api.bodies.parts import Strict
from qlm.gateway.api.errors import invalid

GRAMMAR_BYTES_MAX: Final = 65_536
"""Largest constraint on an answer: it is part of the metadata that message and shared state hold."""

_KINDS: Final = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def _schema(value: object) -> object:
    with contextlib.suppress(orjson.JSONDecodeError):
        value = orjson.loads(value) if isinstance(value, str) else value
    if not isinstance(value, dict | None):
        raise ValueError("a JSON schema, or the text of one")
    return value


class StructuredOutputs(Strict):
    """A constraint on the answer, in vLLM's words: one of its kinds, and options."""

    # JSON schema that the answer fits, or the text of one.
    json_: Annotated[dict[str, Any] | str | None, BeforeValidator(_schema)] = Field(None, alias="json")
    regex: str | None = None  # Regular expression that the whole answer matches
    choice: Annotated[list[str], Field(min_length=1)] | None = None  # The answers that are possible
    grammar: str | None = None  # Grammar of the answer, in a notation that the engine knows
    json_object: bool | None = None  # True for any JSON object
    structural_tag: str | None = None  # vLLM's structural tag, as JSON text
    disable_any_whitespace: bool | None = None  # Option of `json` and `json_object`
    disable_additional_properties: bool | None = None  # Option of `json`
    whitespace_pattern: str | None = None  # Option of `json`: regular expression of what is between values

    @property
    def fields(self) -> dict[str, Any]:
        """What is set, as engines get it."""
        plain = self.model_dump(by_alias=True)
        return {name: value for name, value in plain.items() if value is not None and value is not False}

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        fields = self.fields
        if fields and len(fields.keys() & set(_KINDS)) != 1:
            raise ValueError(f"one of {', '.join(_KINDS)}")
        return self


def _alone(value: StructuredOutputs | None, info: ValidationInfo) -> StructuredOutputs | None:
    if value is not None and value.fields and info.data.get("response_format") is not None:
        raise ValueError("none beside response_format: both say what the answer has to fit")
    return value


OneConstraint = Annotated[StructuredOutputs | None, AfterValidator(_alone)]
"""The field `structured_outputs` of a body, behind its `response_format`."""


def grammar_text(constraint: Mapping[str, Any], beside: Mapping[str, Any], field: str) -> str:
    """Return a constraint as text.

    Args:
        constraint: vLLM's `structured_outputs`.
        beside: Further fields of the engine's request.
        field: The field of the client that says it.

    Raises:
        ApiError: It is too large.
    """
    # In the order that the client gave: properties are generated in the order of their schema.
    grammar = orjson.dumps({"structured_outputs": constraint, **beside}).decode()
    if len(grammar) > GRAMMAR_BYTES_MAX:
        message = f"the schema of the answer has {len(grammar)} bytes; expected at most {GRAMMAR_BYTES_MAX}"
        raise invalid(field, message)
    return grammar


def completion_grammar(
    response_format: Mapping[str, Any] | None, structured_outputs: Mapping[str, Any] | None
) -> str:
    """Return the constraint of a completion; empty for none. As in vLLM, the format comes beside the outputs.

    Args:
        response_format: A checked `ResponseFormat` as plain data; None without.
        structured_outputs: vLLM's field; None without.

    Raises:
        ApiError: It is too large.
    """
    constraint = {name: value for name, value in (structured_outputs or {}).items() if value is not None}
    if response_format is not None:
        of_schema = response_format["type"] == "json_schema"
        constraint |= (
            {"json": response_format["json_schema"]["schema"]} if of_schema else {"json_object": True}
        )
    field = "structured_outputs" if response_format is None else "response_format"
    return grammar_text(constraint, {}, field) if constraint else ""

"""Constraints on answers, in the form in which engines get them (`Sampling.grammar`)."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from qlm.gateway.api.errors import invalid

GRAMMAR_BYTES_MAX: Final = 65_536
"""Largest constraint on an answer: it is part of the metadata that message and shared state hold."""


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

"""Answers of emulated models under a constraint: JSON that fits simple schemas, or one of the choices.

They depend on the constraint and the prompt alone. Schemas may use `type`, `properties`, `required`, `items`,
`minItems`, `enum`, `const`, `anyOf`, `oneOf`, `allOf` (its first), `minimum`, `minLength`, and `$ref` to a
definition; other keywords are ignored. What cannot be followed is refused, as engines refuse it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qlm.domain.byte_tokens import EOS_ID
from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import TokenIds
from qlm.simulator.engine.token_chain import TokenChain

_WORD_LETTERS: Final = 6
_DEPTH_MAX: Final = 12
_SIZE_MAX: Final = 100_000
"""Values and letters of an answer; more fit no context of an emulated model."""

_UNREADABLE: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What reading a constraint comes to that is none."""

_ANY_OBJECT: Final = {"type": "object", "properties": {"answer": {"type": "string"}}}


def constrained_ids(grammar: str, chain: TokenChain) -> TokenIds:
    """Return the whole answer, EOS included.

    Args:
        grammar: As of `Sampling.grammar`.
        chain: Source of letters, at the end of the prompt.

    Raises:
        InvalidValueError: The constraint is of a kind that is not emulated, or cannot be followed.
    """
    constraint = json.loads(grammar)["structured_outputs"]
    try:
        return (*_text(constraint, chain).encode(), EOS_ID)
    except InvalidValueError:
        raise
    except _UNREADABLE as error:
        expected = f"a constraint that can be followed ({error!r})"
        raise InvalidValueError("structured_outputs", constraint, expected) from error


def _text(constraint: Mapping[str, Any], chain: TokenChain) -> str:
    if choices := constraint.get("choice"):
        return str(choices[chain.digest % len(choices)])
    if constraint.get("json_object"):
        return json.dumps(_Example(_ANY_OBJECT, chain).of(_ANY_OBJECT))
    schema = constraint.get("json")
    if schema is None:
        raise InvalidValueError("structured_outputs", constraint, "json, json_object or choice")
    schema = json.loads(schema) if isinstance(schema, str) else schema
    if not isinstance(schema, Mapping):
        raise InvalidValueError("structured_outputs.json", schema, "a schema")
    return json.dumps(_Example(schema, chain).of(schema))


class _Example:
    """Values that fit the schemas of one document."""

    def __init__(self, document: Mapping[str, Any], chain: TokenChain) -> None:
        self._document = document
        self._chain = chain
        self._room = _SIZE_MAX

    def of(self, schema: Any, depth: int = 0) -> Any:
        """Return a value that fits a schema."""
        self._take(1)
        schema = self._resolved(schema, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][self._chain.digest % len(schema["enum"])]
        for name in ("anyOf", "oneOf", "allOf"):
            if name in schema:
                return self.of(schema[name][0], depth + 1)
        return self._of_kind(schema, depth)

    def _of_kind(self, schema: Mapping[str, Any], depth: int) -> Any:
        match _kind(schema):
            case "object":
                return {name: self.of(each, depth + 1) for name, each in _properties(schema, depth)}
            case "array":
                return [self.of(schema.get("items", {}), depth + 1) for _ in range(schema.get("minItems", 1))]
            case "integer" | "number":
                return max(self._chain.digest % 10, schema.get("minimum", 0))
            case "boolean":
                return bool(self._chain.digest % 2)
            case "null":
                return None
            case "string":
                return self._word(schema.get("minLength", 0))
            case kind:
                raise InvalidValueError("structured_outputs.json", kind, "a type of JSON")

    def _resolved(self, schema: Any, depth: int) -> Mapping[str, Any]:
        if depth > _DEPTH_MAX:
            raise InvalidValueError("structured_outputs.json", depth, f"at most {_DEPTH_MAX} levels")
        if not isinstance(schema, Mapping):
            return {}
        if "$ref" not in schema:
            return schema
        found: Any = self._document
        for name in schema["$ref"].removeprefix("#").split("/")[1:]:
            found = found[name.replace("~1", "/").replace("~0", "~")]
        return self._resolved(found, depth + 1)

    def _word(self, least: int) -> str:
        count = max(_WORD_LETTERS, least)
        self._take(count)
        return bytes(self._chain.next_id((EOS_ID,)) for _ in range(count)).decode()

    def _take(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            expected = f"a schema whose answers may have at most {_SIZE_MAX} values and letters"
            raise InvalidValueError("structured_outputs.json", self._document, expected)


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    return str(kind[0]) if isinstance(kind, list) else str(kind)


def _properties(schema: Mapping[str, Any], depth: int) -> Sequence[tuple[str, Any]]:
    """Return the properties of an object: those that are required, or all if it requires none.

    Clients refuse tool calls whose optional arguments do not fit each other. Deep down only required ones
    come, so that it ends.
    """
    known, required = schema.get("properties", {}), schema.get("required", ())
    some = bool(required) or depth >= _DEPTH_MAX // 2
    return [(name, each) for name, each in known.items() if name in required or not some]

"""Schemas of answers: TypedDicts with their fields, as `gateway.api.fields` and stored values define them."""

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final

from scripts.reference_pages.answer_fields import is_shape, meanings
from scripts.reference_pages.fields import NoMeaningError, summary

REF: Final = "#/components/schemas/"

Schema = dict[str, Any]

_TYPES: Final[Mapping[Any, Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    types.NoneType: {"type": "null"},
    Any: {},
}


class Schemas:
    """The schemas that a document shares, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Schema] = {}
        self._kinds: dict[str, Any] = {}

    def add(self, name: str, kind: Any, schema: Schema) -> None:
        """Add a schema.

        Raises:
            NoMeaningError: Another type has the name already.
        """
        if self._kinds.setdefault(name, kind) is not kind:
            raise NoMeaningError(
                f"{kind} and {self._kinds[name]} have the same name in the document of the API"
            )
        self.by_name[name] = schema

    def of(self, annotation: Any) -> Schema:
        """Return the schema of a type; those of objects are added."""
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin in (typing.NotRequired, typing.Required, typing.Annotated):
            return self.of(arguments[0])
        if origin in (typing.Union, types.UnionType):
            return any_of([self.of(each) for each in arguments])
        if origin is typing.Literal:
            return one_of(arguments)
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if origin in (Sequence, list, tuple):
            return {"type": "array", "items": self.of(arguments[0])}
        if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
            return one_of([each.value for each in annotation])
        if is_shape(annotation):
            return self._object(annotation)
        return dict(_TYPES[annotation])

    def _object(self, shape: Any) -> Schema:
        name = shape.__name__
        if name not in self._kinds:
            self.add(name, shape, {})  # it may hold others of its kind
            self.by_name[name] |= self._fields(shape)
        elif self._kinds[name] is not shape:
            self.add(name, shape, {})
        return {"$ref": REF + name}

    def _fields(self, shape: Any) -> Schema:
        said, hints = meanings(shape), typing.get_type_hints(shape, include_extras=True)
        if missing := hints.keys() - said.keys():
            raise NoMeaningError(f"{shape.__name__}.{min(missing)} has no comment or entry in the docstring")
        optional = {name for name, hint in hints.items() if typing.get_origin(hint) is typing.NotRequired}
        if dataclasses.is_dataclass(shape):
            optional = set()
        return {
            "type": "object",
            "description": summary(shape),
            "properties": {name: self.of(hint) | {"description": said[name]} for name, hint in hints.items()},
            "required": [name for name in hints if name not in optional],
        }


def any_of(schemas: Sequence[Schema]) -> Schema:
    """Return the schema of values of any of several."""
    different = [each for at, each in enumerate(schemas) if each not in schemas[:at]]
    if {} in different:
        return {}
    return different[0] if len(different) == 1 else {"anyOf": different}


def one_of(values: Sequence[Any]) -> Schema:
    """Return the schema of one of some values."""
    return {"const": values[0]} if len(values) == 1 else {"enum": list(values)}

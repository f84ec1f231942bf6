"""Schemas of bodies: pydantic models with what the comments at their fields say."""

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from qlm.gateway.http.document.accepts import AcceptedBody
from scripts.api_document.answers import REF, Schema, Schemas, any_of
from scripts.reference_pages.fields import rows, summary

_NULL: Schema = {"type": "null"}


def body_schema(bodies: Sequence[AcceptedBody], schemas: Schemas) -> Schema:
    """Return the schema of a route's body; those of the objects in it are added."""
    return any_of([_of(each, schemas) for each in bodies])


def _of(body: AcceptedBody, schemas: Schemas) -> Schema:
    model = body.model
    written = model.model_json_schema(ref_template=REF + "{model}")
    inner = written.pop("$defs", {})
    kinds = {each.__name__: each for each in _models_in(model)}
    for name, schema in inner.items():
        schemas.add(name, kinds[name], _said(kinds[name], schema))
    schema = _said(model, written)
    for name, own in schema["properties"].items():
        if name not in schema.get("required", ()):
            schema["properties"][name] = _or_null(own)
    for name, values in body.neutral.items():
        schema["properties"][name] = _neutral(schema["properties"].get(name), values)
    schemas.add(model.__name__, model, schema)
    return {"$ref": REF + model.__name__}


def _models_in(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield a model and those in its fields."""
    yield model
    for field in model.model_fields.values():
        yield from _models_of(field.annotation)


def _models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _models_in(annotation)
    for each in getattr(annotation, "__args__", ()):
        yield from _models_of(each)


def _said(model: type[BaseModel], schema: Schema) -> Schema:
    """Return a schema with what the code says of it, and without titles that repeat names."""
    described = rows(model, lambda each: each.__name__)
    names = [field.alias or name for name, field in model.model_fields.items()]
    said = {name: row[-1] for name, row in zip(names, described, strict=True)}
    plain: Schema = _untitled(schema)
    for name, field in plain.get("properties", {}).items():
        field["description"] = said[name]
    return plain | {"description": summary(model)}


def _untitled(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_untitled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    properties = schema.get("properties")
    plain = {name: _untitled(value) for name, value in schema.items() if name not in ("title", "properties")}
    if isinstance(properties, dict):
        plain["properties"] = {name: _untitled(value) for name, value in properties.items()}
    return plain


def _or_null(schema: Schema) -> Schema:
    """Return the schema of a field of a body, which may be null as if it were missing."""
    said = {name: schema[name] for name in ("description", "default") if name in schema}
    own = {name: value for name, value in schema.items() if name not in said}
    alternatives = own["anyOf"] if own.keys() == {"anyOf"} else [own]
    return any_of([*alternatives, *([] if _NULL in alternatives else [_NULL])]) | said


def _neutral(own: Schema | None, values: tuple[object, ...]) -> Schema:
    """Return the schema of a field that is accepted at some values beside its own ones."""
    constants = {"enum": [None, *values]}
    if own is None:
        return constants | {
            "description": "Accepted at these values only: QLM does not have what it asks for."
        }
    return _or_null(own) | {"anyOf": [*own.get("anyOf", [own]), constants]} if values else own

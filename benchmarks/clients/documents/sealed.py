"""Documents of which no answer may differ by a field, as it may from those that are served."""

import copy
from collections.abc import Iterator
from typing import Any

_SCHEMAS = "#/components/schemas/"


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document whose answers have the fields that it names, and no others."""
    document = copy.deepcopy(document)
    operations = [each for methods in document["paths"].values() for each in methods.values()]
    answers = [document["components"]["responses"], *(each["responses"] for each in operations)]
    schemas = document["components"]["schemas"]
    for name in _reached(answers, schemas, set()):
        if schemas[name].get("type") == "object":
            schemas[name].setdefault("additionalProperties", False)
    return document


def _reached(part: Any, schemas: dict[str, Any], seen: set[str]) -> set[str]:
    """Return the names of the schemas that a part of a document refers to, those inside them too."""
    for reference in _references(part):
        name = reference.removeprefix(_SCHEMAS)
        if name != reference and name not in seen:
            seen.add(name)
            _reached(schemas[name], schemas, seen)
    return seen


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for each in part.values():
            yield from _references(each)
    elif isinstance(part, list):
        for each in part:
            yield from _references(each)

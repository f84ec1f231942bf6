"""The fields of answers in words: one row each, those of an inner object under the path to them."""

import ast
import dataclasses
import enum
import inspect
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from scripts.reference_pages.fields import NoMeaningError, attributes, comments, summary
from scripts.reference_pages.markdown import anchor, table

HEAD: Final = ("field", "type", "meaning")

_WORDS: Final[Mapping[Any, tuple[str, str]]] = {
    str: ("text", "texts"),
    int: ("whole number", "whole numbers"),
    float: ("number", "numbers"),
    bool: ("true or false", "truth values"),
    types.NoneType: ("null", "nulls"),
    Any: ("anything", "anything"),
}
"""A type, and several of it."""

Places = Mapping[type, str]
"""Shapes that have a part of a page of their own, with where it is."""


def is_shape(annotation: Any) -> bool:
    """Return whether this is an object with fields of its own."""
    return typing.is_typeddict(annotation) or dataclasses.is_dataclass(annotation)


def part(shape: type, title: str, places: Places) -> str:
    """Describe a shape: its heading, what it is, and its fields."""
    base = next((each for each in bases(shape) if each in places), None)
    inherited = set(typing.get_type_hints(base)) if base is not None else set()
    said = [f"### {title}", summary(shape)]
    if base is not None:
        said.append(f"The fields of {link(base, places)}, and")
    return "\n\n".join([*said, table(HEAD, _rows(shape, places, inherited))])


def link(shape: type, places: Places) -> str:
    """Write where a shape is described."""
    return places[shape]


def bases(shape: type) -> list[type]:
    """Return the shapes that a shape has its first fields from; typing keeps no note of them."""
    for node in ast.parse(inspect.getsource(sys.modules[shape.__module__])).body:
        if isinstance(node, ast.ClassDef) and node.name == shape.__name__:
            named = (getattr(sys.modules[shape.__module__], ast.unparse(each)) for each in node.bases)
            return [each for each in named if is_shape(each)]
    return []


def meanings(shape: type) -> dict[str, str]:
    """Return what the docstrings of a shape and its bases say of its fields."""
    said: dict[str, str] = {}
    for base in bases(shape):
        said |= meanings(base)
    return said | attributes(shape.__doc__ or "") | comments(shape)


def _rows(shape: type, places: Places, but: set[str], path: str = "") -> Iterator[tuple[str, str, str]]:
    said = meanings(shape)
    for name, annotation in typing.get_type_hints(shape, include_extras=True).items():
        if name in but:
            continue
        if name not in said:
            raise NoMeaningError(f"{shape.__name__}.{name} has no comment or entry in the docstring")
        kind, optional = _bare(annotation)
        where = f"{path}{name}"
        yield f"`{where}`", words(kind, places) + (", may be missing" if optional else ""), said[name]
        if (inner := _inner(kind, places)) is not None:
            yield from _rows(inner[0], places, set(), f"{where}{inner[1]}.")


def _bare(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) is typing.NotRequired:
        return typing.get_args(annotation)[0], True
    return annotation, False


def _inner(annotation: Any, places: Places, step: str = "") -> tuple[type, str] | None:
    """Return the shape inside a type that is described where it stands, with the step to its fields."""
    if is_shape(annotation):
        return None if annotation in places else (annotation, step)
    below = f"{step}[]" if typing.get_origin(annotation) in (Sequence, tuple) else step
    found = (_inner(each, places, below) for each in typing.get_args(annotation))
    return next((each for each in found if each is not None), None)


def words(annotation: Any, places: Places) -> str:
    """Put a type into words."""
    return _both(annotation, places)[0]


def _both(annotation: Any, places: Places) -> tuple[str, str]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        pairs = [_both(each, places) for each in arguments]
        return " or ".join(one for one, _ in pairs), " or ".join(many for _, many in pairs)
    if origin is typing.Literal:
        return (" or ".join(f"`{each}`" for each in arguments),) * 2
    if origin in (dict, Mapping):
        key, value = (_both(each, places)[1] for each in arguments)
        return ("object",) * 2 if arguments[1] is Any else (f"object, {key} to {value}", "objects")
    if origin is Sequence:
        return f"list of {_both(arguments[0], places)[1]}", "lists"
    if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        return (" or ".join(f"`{each.value}`" for each in annotation),) * 2
    if is_shape(annotation):
        here = annotation in places
        return (link(annotation, places),) * 2 if here else ("object", "objects")
    return _WORDS[annotation]


def fragment(title: str) -> str:
    """Return the link to a heading on the same page."""
    return f"#{anchor(title.replace('`', ''))}"

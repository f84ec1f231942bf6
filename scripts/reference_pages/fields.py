"""The fields of pydantic models in words: type, default, limits, and what their docstring says of them."""

import ast
import inspect
import io
import re
import sys
import tokenize
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from scripts.reference_pages.limits import Limits

HEAD: Final = ("key", "type", "default", "limits", "meaning")

_WORDS: Final[Mapping[Any, tuple[str, str]]] = {
    str: ("text", "texts"),
    Path: ("path", "paths"),
    int: ("whole number", "whole numbers"),
    float: ("number", "numbers"),
    bool: ("true or false", "truth values"),
    Any: ("anything", "anything"),
}
"""A type, and several of it."""

Link = Callable[[type[BaseModel]], str]
"""Writes where the fields of a model are described."""


class NoMeaningError(Exception):
    """A field is not described where it is defined."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The type of a field in words.

    Attributes:
        one: In words.
        many: Several of it, in words.
        limits: What is more to be said of it.
    """

    one: str
    many: str
    limits: tuple[str, ...] = ()


def rows(model: type[BaseModel], link: Link, own: Sequence[str] | None = None) -> list[tuple[str, ...]]:
    """Describe the fields of a model, in the order of its code.

    Args:
        model: The model.
        link: Where models inside it are described.
        own: The fields to describe; all if not given.

    Raises:
        NoMeaningError: The docstrings of the model and its bases say nothing of a field.
    """
    said = meanings(model)
    described: list[tuple[str, ...]] = []
    for name, field in model.model_fields.items():
        if own is not None and name not in own:
            continue
        if name not in said:
            raise NoMeaningError(f"{model.__name__}.{name} has no comment or entry in the docstring")
        shape = shape_of(field.annotation, link, field.metadata)
        key = f"`{field.alias or name}`"
        described.append((key, shape.one, default(field), ", ".join(shape.limits), said[name]))
    return described


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return what the code says of each field of a model and its bases."""
    said: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            said |= attributes(each.__doc__ or "") | comments(each)
    return said


def comments(model: type) -> dict[str, str]:
    """Return the comments at the fields of a class: at the end of the line, or in the lines above it."""
    source = inspect.getsource(sys.modules[model.__module__])
    said = {
        token.start[0]: (token.string.lstrip("# "), token.line.lstrip().startswith("#"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found: dict[str, str] = {}
    for node in ast.parse(source).body:
        if not (isinstance(node, ast.ClassDef) and node.name == model.__name__):
            continue
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and (words := _comment(field, said)):
                found[ast.unparse(field.target)] = words if words.endswith(".") else f"{words}."
    return found


def _comment(field: ast.AnnAssign, said: Mapping[int, tuple[str, bool]]) -> str:
    if (end := field.end_lineno or field.lineno) in said:
        return said[end][0]
    lines: list[str] = []
    at = field.lineno - 1
    while at in said and said[at][1]:
        lines.insert(0, said[at][0])
        at -= 1
    return " ".join(lines)


def attributes(docstring: str) -> dict[str, str]:
    """Read the section Attributes of a docstring."""
    text = inspect.cleandoc(docstring).partition("\nAttributes:\n")[2]
    found = re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", text, re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in found}


def summary(model: type[BaseModel]) -> str:
    """Return a docstring without its sections."""
    return inspect.cleandoc(model.__doc__ or "").partition("\nAttributes:\n")[0].strip()


def shape_of(annotation: Any, link: Link, metadata: Sequence[Any] = ()) -> Shape:
    """Put a type with its constraints into words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    limits = Limits.of(metadata)
    if origin is typing.Annotated:
        return shape_of(arguments[0], link, (*metadata, *arguments[1:]))
    if origin in (typing.Union, types.UnionType):
        return _one_of([each for each in arguments if each is not types.NoneType], link, metadata)
    if origin is typing.Literal or _is_choice(annotation):
        words = " or ".join(f"`{_shown(each)}`" for each in arguments or annotation)
        return Shape(words, words)
    if origin is not None and issubclass(origin, Mapping):
        key, value = (shape_of(each, link) for each in arguments)
        named = (*(f"names: {each}" for each in key.limits), *(f"values: {each}" for each in value.limits))
        of = f"of {key.many} to {value.many}"
        return Shape(f"mapping {of}", f"mappings {of}", (*limits.of_many(), *named))
    if origin is not None and issubclass(origin, Sequence):
        item = shape_of(arguments[0], link)
        return Shape(
            f"list of {item.many}", "lists", (*limits.of_many(), *(f"each {each}" for each in item.limits))
        )
    if issubclass(annotation, BaseModel):
        return Shape(link(annotation), link(annotation))
    one, many = _WORDS[annotation]
    return Shape(one, many, limits.of_text() if annotation is str else limits.of_number())


def _is_choice(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, StrEnum)


def _one_of(annotations: Sequence[Any], link: Link, metadata: Sequence[Any]) -> Shape:
    shapes = [shape_of(each, link, metadata) for each in annotations]
    limits = dict.fromkeys(each for shape in shapes for each in shape.limits)
    return Shape(
        " or ".join(each.one for each in shapes), " or ".join(each.many for each in shapes), tuple(limits)
    )


def default(field: FieldInfo) -> str:
    """Put a default into words."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ((), [], {}):
        return "none"
    if isinstance(value, BaseModel):
        given = value.model_dump(exclude_defaults=True)
        return f"`{yaml.safe_dump(given, default_flow_style=True).strip()}`" if given else "its defaults"
    if isinstance(value, tuple):
        return f"`{yaml.safe_dump(list(value), default_flow_style=True).strip()}`"
    return f"`{_shown(value)}`"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

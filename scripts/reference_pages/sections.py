"""The sections of a file that pydantic models read."""

import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel


def sections(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield each section below a model with its path in a file.

    A path has `[]` behind the name of a list, and `.NAME` behind that of a mapping.
    """
    for name, field in model.model_fields.items():
        for inner, step in _models_in(field.annotation):
            below = f"{path}.{name}{step}".removeprefix(".")
            yield below, inner
            yield from sections(inner, below)


def _models_in(annotation: Any, step: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, step
    origin = typing.get_origin(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        step += ".NAME"
    elif isinstance(origin, type) and issubclass(origin, Sequence):
        step += "[]"
    for each in typing.get_args(annotation):
        yield from _models_in(each, step)

"""Names that are like an unknown one, for errors."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from qlm.domain.shown import cut

LISTED_MAX: Final = 12
"""More fields than these are not listed: the reference has them."""


def suggestion(model: type[BaseModel], path: Sequence[int | str]) -> str:
    """Return `; did you mean NAME?` for an unknown field; if none is like it, the fields there are, if few.

    Args:
        model: The schema.
        path: Path to the field, as in errors of pydantic.
    """
    *outer, name = path
    fields = beside(model, outer)
    found = get_close_matches(cut(str(name)), fields, n=1)
    if found:
        return f"; did you mean {found[0]}?"
    return f"; possible here: {', '.join(fields)}" if 1 < len(fields) <= LISTED_MAX else ""


def meant(value: str, known: Collection[str]) -> str:
    """Return `; did you mean VALUE?` for an unknown value, or nothing if no known one is like it."""
    by_lower = {each.lower(): each for each in sorted(known)}
    found = get_close_matches(value.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[found[0]]}?" if found else ""


def meant_path(path: str, known: Collection[str]) -> str:
    """Return `; did you mean PATH?` for the path that a wrong base address makes of a known one, or nothing.

    Such a base address has no `/v1`, has it twice, or ends with a slash.
    """
    plain = "/" + "/".join(part for part in path.split("/") if part)
    found = [each for each in known if plain.endswith(each) or f"/v1{plain}" == each]
    return f"; did you mean {max(found, key=len)}?" if found else ""


def beside(model: type[BaseModel], outer: Sequence[int | str]) -> Sequence[str]:
    """Return the names of the fields at a path; positions and keys of maps have no fields of their own."""
    shapes: Sequence[type[BaseModel]] = ()
    for step in outer:
        field = _sent(model).get(step) if isinstance(step, str) else None
        if field is not None:
            shapes = tuple(_models_in(field.annotation))
            if not shapes:
                return ()
            model = shapes[0]
        # A path names the class of a union that was tried.
        model = next((each for each in shapes if each.__name__ == step), model)
    return tuple(_sent(model))


def _sent(model: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """Return the fields of a model by the names that clients send."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    else:
        for each in get_args(annotation):
            yield from _models_in(each)

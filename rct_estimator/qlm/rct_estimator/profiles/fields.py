"""Checks on the plain data of a profile file; each names the key, the value and what was expected."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from qlm.domain.errors import InvalidValueError


def mapping_of(
    field: str, value: object, keys: Sequence[str], optional: Sequence[str] = ()
) -> Mapping[str, Any]:
    """Check that `value` is a mapping with exactly these keys, and perhaps the optional ones."""
    known = (*keys, *optional)
    if not isinstance(value, Mapping):
        raise InvalidValueError(field, value, f"a mapping with the keys {', '.join(known)}")
    for key in value:
        if key not in known:
            raise InvalidValueError(f"{field}.{key}", value[key], f"no such key; known: {', '.join(known)}")
    for key in keys:
        if key not in value:
            raise InvalidValueError(f"{field}.{key}", None, "a value; the key is missing")
    return value


def text_of(field: str, value: object) -> str:
    """Check that `value` is a text with something in it."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidValueError(field, value, "a text")
    return value.strip()


def number_of(field: str, value: object, *, whole: bool = False) -> int | float:
    """Return a number as it stands; whole numbers stay int."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValueError(field, value, "a number")
    if whole:
        if not math.isfinite(value) or value != round(value):
            raise InvalidValueError(field, value, "a whole number")
        return round(value)
    return value


def check_positive(field: str, value: float, *, zero: bool = False) -> None:
    """Refuse what is negative or not finite, and zero unless it is allowed."""
    if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
        raise InvalidValueError(field, value, "0 or more" if zero else "a positive number")


def check_share(field: str, value: float) -> None:
    """Refuse what is not a share of 0 to 1."""
    if not 0 <= value <= 1:
        raise InvalidValueError(field, value, "a share of 0 to 1")


def flag_of(field: str, value: object) -> bool:
    """Check that `value` is true or false."""
    if not isinstance(value, bool):
        raise InvalidValueError(field, value, "true or false")
    return value

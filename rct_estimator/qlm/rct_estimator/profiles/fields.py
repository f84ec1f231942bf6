"""Checks on the plain data of a profile file; each names the key, the value and what was expected."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qlm.domain.errors import InvalidValueError

WHOLE_MAX: Final = 1 << 53
"""Largest whole number: no engine has more of anything, and floats are exact up to it."""


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
    """Return a number as it stands; whole numbers stay int, and are at most `WHOLE_MAX`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValueError(field, value, "a number")
    _check_size(field, value, whole=whole)
    if not whole:
        return value
    if not math.isfinite(value) or value != round(value):
        raise InvalidValueError(field, value, "a whole number")
    return round(value)


def check_positive(field: str, value: float, *, zero: bool = False) -> None:
    """Refuse what is negative or not finite, and zero unless it is allowed."""
    _check_size(field, value)
    if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
        raise InvalidValueError(field, value, "0 or more" if zero else "a positive number")


def _check_size(field: str, value: float, *, whole: bool = False) -> None:
    """Refuse a whole number that is too large; floats hold only whole numbers from there on."""
    counted = isinstance(value, int) or (whole and math.isfinite(value))
    if counted and abs(value) > WHOLE_MAX:
        raise InvalidValueError(field, value, f"a whole number of at most {WHOLE_MAX}")


def check_share(field: str, value: float) -> None:
    """Refuse what is not a share of 0 to 1."""
    if not 0 <= value <= 1:
        raise InvalidValueError(field, value, "a share of 0 to 1")


def flag_of(field: str, value: object) -> bool:
    """Check that `value` is true or false."""
    if not isinstance(value, bool):
        raise InvalidValueError(field, value, "true or false")
    return value

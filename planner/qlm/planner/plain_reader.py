"""Strict reading of JSON-like data: errors name what is missing, unknown, of the wrong type or too large."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qlm.domain.errors import InvalidValueError
from qlm.planner.limits import NAME_CHARACTERS_MAX

_REQUIRED: Final[Any] = object()


class Reader:
    """Takes fields out of a mapping; `done` refuses fields that were not taken.

    Attributes:
        where: Path of the mapping, for error messages.
    """

    def __init__(self, where: str, plain: Any) -> None:
        if not isinstance(plain, Mapping):
            raise InvalidValueError(where, plain, "an object")
        self.where = where
        self._left = dict(plain)

    def take(self, key: str, default: Any = _REQUIRED) -> Any:
        """Take any value."""
        value = self._left.pop(key, default)
        if value is _REQUIRED:
            raise InvalidValueError(f"{self.where}.{key}", None, "a value; the field is missing")
        return value

    def has(self, key: str) -> bool:
        """Return True if there is such a field that was not taken."""
        return key in self._left

    def version(self, expected: int) -> None:
        """Take `version`, which must be the expected one."""
        value = self.take("version")
        if isinstance(value, bool) or value != expected:
            raise InvalidValueError(f"{self.where}.version", value, str(expected))

    def number(self, key: str, default: Any = _REQUIRED, *, least: float, most: float) -> float:
        """Take a finite number between two others."""
        return number(f"{self.where}.{key}", self.take(key, default), least=least, most=most)

    def number_or_none(self, key: str, *, least: float, most: float) -> float | None:
        """Take a number that may be null or missing."""
        value = self.take(key, None)
        return None if value is None else number(f"{self.where}.{key}", value, least=least, most=most)

    def integer(self, key: str, default: Any = _REQUIRED, *, least: int, most: int) -> int:
        """Take a whole number between two others; 3.0 is one."""
        value = self.take(key, default)
        if isinstance(value, float) and not value.is_integer():
            raise InvalidValueError(f"{self.where}.{key}", value, "a whole number")
        if not isinstance(value, int):
            value = number(f"{self.where}.{key}", value, least=least, most=most)
        number(f"{self.where}.{key}", value, least=least, most=most)
        return int(value)

    def text(self, key: str) -> str:
        """Take a name."""
        return name(f"{self.where}.{key}", self.take(key))

    def mapping(self, key: str, most: int) -> Mapping[str, Any]:
        """Take an object with names as keys, at most `most`."""
        value = self.take(key)
        if not isinstance(value, Mapping):
            raise InvalidValueError(f"{self.where}.{key}", value, "an object")
        count_at_most(f"{self.where}.{key}", len(value), most)
        for each in value:
            name(f"a key of {self.where}.{key}", each)
        return value

    def sequence(self, key: str, most: int, default: Any = _REQUIRED) -> Sequence[Any]:
        """Take a list of at most `most` items."""
        value = self.take(key, default)
        return sequence(f"{self.where}.{key}", value, most)

    def names(self, key: str, most: int, default: Any = _REQUIRED) -> list[str]:
        """Take a list of names, each there once."""
        return names(f"{self.where}.{key}", self.take(key, default), most)

    def done(self) -> None:
        """Refuse fields that were not taken."""
        if self._left:
            unknown = ", ".join(sorted(map(str, self._left)))
            raise InvalidValueError(self.where, unknown, "no field of this name")


def number(where: str, value: Any, *, least: float, most: float) -> float:
    """Read a finite number between two others; booleans are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValueError(where, value, "a number")
    if value != value or value in (math.inf, -math.inf):
        raise InvalidValueError(where, value, "a finite number")
    if value < least:
        raise InvalidValueError(where, value, f"at least {_shown(least)}")
    if value > most:
        raise InvalidValueError(where, value, f"at most {_shown(most)}")
    return float(value)


def _shown(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:.16g}"


def name(where: str, value: Any) -> str:
    """Read a name: non-empty printable text."""
    if not isinstance(value, str) or not value:
        raise InvalidValueError(where, value, "a non-empty string")
    if len(value) > NAME_CHARACTERS_MAX:
        raise InvalidValueError(where, value, f"at most {NAME_CHARACTERS_MAX} characters")
    if not value.isprintable():
        raise InvalidValueError(where, value, "printable characters only")
    return value


def names(where: str, value: Any, most: int) -> list[str]:
    """Read a list of names, each there once."""
    read: dict[str, None] = {}
    for at, each in enumerate(sequence(where, value, most)):
        if name(f"{where}[{at}]", each) in read:
            raise InvalidValueError(f"{where}[{at}]", each, "each name once")
        read[each] = None
    return list(read)


def sequence(where: str, value: Any, most: int) -> Sequence[Any]:
    """Read a list of at most `most` items."""
    if not isinstance(value, list | tuple):
        raise InvalidValueError(where, value, "a list")
    count_at_most(where, len(value), most)
    return value


def count_at_most(where: str, count: int, most: int) -> None:
    """Refuse more than `most`."""
    if count > most:
        raise InvalidValueError(f"number of {where}", count, f"at most {most}")

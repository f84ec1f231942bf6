"""Checked reading of a model's `config.json`, whose keys have different names by family."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from qlm.domain.errors import InvalidValueError

WHOLE_MAX: Final = (1 << 40) - 1
"""Largest whole number: no model has more of anything."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Mapping whose values are looked up under one of several names.

    Attributes:
        plain: The mapping.
        where: File and section, for messages.
    """

    plain: Mapping[str, Any]
    where: str

    def path(self, key: str) -> str:
        """Return the path of a key, for messages."""
        return f"{self.where}{key}"

    def get(self, *names: str) -> Any:
        """Return the value of the first of these keys that is there and not null, or None."""
        for name in names:
            if self.plain.get(name) is not None:
                return self.plain[name]
        return None

    def whole(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number under one of these keys.

        Args:
            names: Keys; the first is named in messages about a missing value.
            default: Value if none is there; without it, one must be.
            least: Smallest value.

        Raises:
            InvalidValueError: The value is missing, no whole number, too small, or more than `WHOLE_MAX`.
        """
        for name in names:
            if self.plain.get(name) is not None:
                return self._whole(name, least)
        if default is not None:
            return default
        expected = "a whole number; the key is missing"
        if len(names) > 1:
            expected += f" (as are {', '.join(names[1:])})"
        raise InvalidValueError(self.path(names[0]), self.plain.get(names[0]), expected)

    def section(self, name: str) -> "Keys":
        """Return the mapping under a key.

        Raises:
            InvalidValueError: It is missing or no mapping.
        """
        value = self.plain.get(name)
        if not isinstance(value, Mapping):
            raise InvalidValueError(self.path(name), value, "a mapping")
        return Keys(value, self.path(f"{name}."))

    def names(self, name: str) -> tuple[str, ...] | None:
        """Return the list of texts under a key, or None.

        Raises:
            InvalidValueError: It is something else.
        """
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise InvalidValueError(self.path(name), value, "a list of texts")
        return tuple(value)

    def _whole(self, name: str, least: int) -> int:
        value = self.plain[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidValueError(self.path(name), value, f"a whole number of at least {least}")
        if value > WHOLE_MAX:
            raise InvalidValueError(self.path(name), value, f"a whole number of at most {WHOLE_MAX}")
        return value

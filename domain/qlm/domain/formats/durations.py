"""Durations as people write them: `90s`, `30m`, `24h`, `7d`."""

import re
from typing import Final

from qlm.domain.errors import InvalidValueError

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_FORM: Final = re.compile(r"([1-9][0-9]{0,8})([smhd])")


def duration_s(field: str, text: str, least_s: int, most_s: int) -> int:
    """Return a duration in seconds.

    Args:
        field: Name of what is read, for errors.
        text: The duration.
        least_s: The shortest allowed.
        most_s: The longest allowed.

    Raises:
        InvalidValueError: It is no duration, or out of range.
    """
    found = _FORM.fullmatch(text)
    seconds = 0 if found is None else int(found[1]) * _UNITS_S[found[2]]
    if not least_s <= seconds <= most_s:
        expected = f"a duration such as 30m, 24h or 7d, from {_shown(least_s)} to {_shown(most_s)}"
        raise InvalidValueError(field, text, expected)
    return seconds


def _shown(seconds: int) -> str:
    unit = next(unit for unit in "dhms" if seconds % _UNITS_S[unit] == 0)
    return f"{seconds // _UNITS_S[unit]}{unit}"

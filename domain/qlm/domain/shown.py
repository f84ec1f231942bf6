"""Formats values for messages: cut if long, without passwords."""

import math
import re
from typing import Final

SHOWN_CHARACTERS_MAX: Final = 200
"""Characters shown of a value."""

DIGITS_MAX: Final = 4000
"""Longer whole numbers are shown by their number of digits; Python formats none of more than 4300."""

_UP_TO_AT: Final = re.compile(r"\A((?:[a-z][a-z0-9+.-]*:?)?//)?.*@", re.DOTALL | re.IGNORECASE)


def shown(value: object, characters_max: int = SHOWN_CHARACTERS_MAX) -> str:
    """Return the repr of any value, cut if it is long."""
    if isinstance(value, int) and (digits := _digits(value)) > DIGITS_MAX:
        return f"a whole number of {digits} digits"
    try:
        return cut(repr(value), characters_max)
    except ValueError:  # it holds such a number
        return f"a {type(value).__name__} that holds a number of thousands of digits"
    except RecursionError:
        return f"a {type(value).__name__} with hundreds of levels"


def _digits(number: int) -> int:
    """Count decimal digits without formatting the number."""
    least = int((number.bit_length() - 1) * math.log10(2)) + 1
    one_more: int = 10**least
    return least + (abs(number) >= one_more)


def cut(text: str, characters_max: int = SHOWN_CHARACTERS_MAX) -> str:
    """Cut a text after `characters_max` characters, and append its length."""
    return text if len(text) <= characters_max else f"{text[:characters_max]}… ({len(text)} characters)"


def without_password(address: str) -> str:
    """Replace the parts of an address that may be secret: between scheme and last @, and the query.

    Without a scheme, all before the last @ may be.
    """
    shown = _UP_TO_AT.sub(lambda found: f"{found[1] or ''}***@", address)
    return re.sub(r"\?.*", "?***", shown, flags=re.DOTALL)


def without_passwords(text: str) -> str:
    """Replace user and password of the addresses in a text."""
    return re.sub(r"//\S*@", "//***@", text)

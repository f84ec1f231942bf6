"""Values in messages: as much of each as a reader needs."""

import math
import re
from typing import Final

SHOWN_CHARACTERS_MAX: Final = 200
"""Of a value."""

DIGITS_MAX: Final = 4000
"""Python writes no whole number of more than 4300 digits; of one with more than these, they are counted."""


def shown(value: object) -> str:
    """Write any value as Python does, cut if it is long."""
    if isinstance(value, int) and (digits := _digits(value)) > DIGITS_MAX:
        return f"a whole number of {digits} digits"
    try:
        return cut(repr(value))
    except ValueError:  # it holds such a number
        return f"a {type(value).__name__} that holds a number of thousands of digits"


def _digits(number: int) -> int:
    """Count decimal digits without writing them."""
    least = int((number.bit_length() - 1) * math.log10(2)) + 1
    one_more: int = 10**least
    return least + (abs(number) >= one_more)


def cut(text: str, characters_max: int = SHOWN_CHARACTERS_MAX) -> str:
    """Leave out what a text has beyond so many characters, and say how long it is."""
    return text if len(text) <= characters_max else f"{text[:characters_max]}… ({len(text)} characters)"


def without_password(address: str) -> str:
    """Leave out what may be secret in an address: what is between scheme and last @, and the query."""
    return re.sub(r"\?.*", "?***", re.sub(r"//.*@", "//***@", address, flags=re.DOTALL), flags=re.DOTALL)


def without_passwords(text: str) -> str:
    """Leave user and password out of the addresses in a text."""
    return re.sub(r"//\S*@", "//***@", text)

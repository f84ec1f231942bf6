"""Halves of characters: surrogate pairs that came apart, as a server in JavaScript may send them in JSON."""

import re
from typing import Final

_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def joined(text: str) -> str:
    """Make one character of each two halves that belong together."""
    return _PAIR.sub(lambda found: found[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)


def ends_in_half(text: str) -> bool:
    """Return True if a text ends with the first half of a pair."""
    return "\ud800" <= text[-1:] <= "\udbff"

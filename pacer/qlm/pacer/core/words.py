"""Units that are shown whole: a word with the white space before it.

Scripts that put no spaces between words break at each grapheme. Not Intl.Segmenter's words: those come from
dictionaries that differ between browsers.
"""

from collections.abc import Sequence
from typing import Final

GRAPHEMES_MAX: Final = 20
"""Longest unit: a longer word, such as an address, is shown in pieces."""

_SPACES: Final = frozenset(
    " \t\n\r\f\v\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2008\u2009\u200a\u2028\u2029\u205f\u3000"
)

_UNSPACED: Final = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x2FDF),  # radicals
    (0x3001, 0x30FF),  # punctuation, Hiragana, Katakana
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF00, 0xFF9F),  # full-width forms
    (0x20000, 0x3FFFF),
)


def words(pieces: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Divide graphemes into complete units, and a last one that more text may continue."""
    units: list[list[str]] = []
    unit: list[str] = []
    in_word = breaks_after = False
    for piece in pieces:
        space, unspaced = piece[0] in _SPACES, _is_unspaced(piece[0])
        ends = in_word and (space or unspaced or breaks_after)
        if unit and (ends or len(unit) == GRAPHEMES_MAX):
            units.append(unit)
            unit, in_word = [], False
        unit.append(piece)
        in_word = in_word or not space
        breaks_after = unspaced
    return units, unit


def _is_unspaced(character: str) -> bool:
    point = ord(character)
    return any(first <= point <= last for first, last in _UNSPACED)

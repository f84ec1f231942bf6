"""Grapheme clusters: the characters that a reader sees (Unicode Standard Annex 29).

A small rule on the tables of `unicodedata`: CR LF, combining marks, variation selectors, emoji with skin
tones, zero width joiners and tags, flags, and Hangul from jamo. Limits: conjuncts of Indic scripts (rule
GB9c) count as several, spacing vowel signs and prepended marks follow their general category, and the
pictographs that a joiner joins are ranges, not the exact property.
"""

import unicodedata
from typing import Final

from qlm.pacer.core.surrogates import ends_in_half

ZWJ: Final = "\u200d"

_EXTEND: Final = frozenset("\u200c\uff9e\uff9f")
"""Extending characters that no general category gives away."""

_SPACING: Final = frozenset("\u0e33\u0eb3")
"""Thai and Lao vowels that belong to the consonant before them, though letters."""

_MARKS: Final = frozenset({"Mn", "Me", "Mc"})
_CONTROLS: Final = frozenset({"Cc", "Cf", "Zl", "Zp"})

_PICTOGRAPHS: Final = (
    (0xA9, 0xA9),
    (0xAE, 0xAE),
    (0x203C, 0x203C),
    (0x2049, 0x2049),
    (0x2122, 0x2139),
    (0x2194, 0x21AA),
    (0x231A, 0x23FF),
    (0x24C2, 0x24C2),
    (0x25AA, 0x27BF),
    (0x2934, 0x2935),
    (0x2B05, 0x2B55),
    (0x3030, 0x303D),
    (0x3297, 0x3299),
    (0x1F000, 0x1F1E5),
    (0x1F200, 0x1F3FA),
    (0x1F400, 0x1FAFF),
)

_L, _V, _T, _LV, _LVT = range(1, 6)
_JAMO_FOLLOWS: Final = {_L: {_L, _V, _LV, _LVT}, _LV: {_V, _T}, _V: {_V, _T}, _LVT: {_T}, _T: {_T}}
"""Kinds of Hangul that continue a syllable, by the kind before them (rules GB6 to GB8)."""


def graphemes(text: str) -> list[str]:
    """Divide a text into its grapheme clusters."""
    found: list[str] = []
    for character in text:
        if found and _joins(found[-1], character):
            found[-1] += character
        else:
            found.append(character)
    return found


def is_open(grapheme: str) -> bool:
    """Return True if a grapheme is known to be incomplete: it ends with a joiner or half a character.

    Half a flag is incomplete, too.
    """
    half_flag = len(grapheme) == 1 and _is_regional(grapheme)
    return grapheme.endswith(ZWJ) or half_flag or ends_in_half(grapheme)


def _joins(cluster: str, character: str) -> bool:
    last = cluster[-1]
    if last < "\u0300" and character < "\u0300":
        return last == "\r" and character == "\n"
    if _is_control(last):
        return False
    if character == ZWJ or _extends(character):
        return True
    if last == ZWJ:
        return _is_pictograph(character) and _is_pictograph(cluster[0])
    if _is_regional(character):
        return len(cluster) == 1 and _is_regional(cluster)
    return _jamo(character) in _JAMO_FOLLOWS.get(_jamo(last), ())


def _is_control(character: str) -> bool:
    joins = character == ZWJ or _extends(character)
    return not joins and unicodedata.category(character) in _CONTROLS


def _extends(character: str) -> bool:
    return (
        unicodedata.category(character) in _MARKS
        or character in _EXTEND
        or character in _SPACING
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= character <= "\U000e007f"  # tags
    )


def _is_regional(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _is_pictograph(character: str) -> bool:
    point = ord(character)
    return any(first <= point <= last for first, last in _PICTOGRAPHS)


def _jamo(character: str) -> int:
    point = ord(character)
    if 0x1100 <= point <= 0x115F or 0xA960 <= point <= 0xA97C:
        return _L
    if 0x1160 <= point <= 0x11A7 or 0xD7B0 <= point <= 0xD7C6:
        return _V
    if 0x11A8 <= point <= 0x11FF or 0xD7CB <= point <= 0xD7FB:
        return _T
    if 0xAC00 <= point <= 0xD7A3:
        return _LVT if (point - 0xAC00) % 28 else _LV
    return 0

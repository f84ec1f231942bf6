"""Texts of single tokens, as in vLLM: each has its text on its own.

A token that ends within a character has no text; the one that completes the character has all of it.
"""

from typing import Final

from qlm.domain.ids import TokenIds
from qlm.gateway.core.tokenizer import Tokenizer

_CONTEXT_TOKENS: Final = 4
"""Tokens before one that may share its character: no character has more bytes in UTF-8."""

_INCOMPLETE: Final = "\ufffd"


class TokenTexts:
    """Texts of tokens that follow each other."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: TokenIds = ()

    def text(self, id: int) -> str:
        """Return the text of a token that comes next."""
        text = self._tokenizer.token_text(id)
        return self._completed(id) if text.endswith(_INCOMPLETE) else text

    def _completed(self, id: int) -> str:
        """Return the text of a character that a token completes; nothing if it does not."""
        decode = self._tokenizer.decode
        for count in range(1, len(self._before) + 1):
            before = self._before[-count:]
            whole = decode((*before, id))
            if whole.endswith(_INCOMPLETE):
                continue
            while before and decode(before[-1:]).endswith(_INCOMPLETE):
                before = before[:-1]
            return whole[_common(decode(before) if before else "", whole) :]
        return ""

    def took(self, id: int) -> None:
        """Note the token that came."""
        self._before = (*self._before, id)[-_CONTEXT_TOKENS:]


def _common(first: str, second: str) -> int:
    """Return the number of characters with which both texts begin."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))

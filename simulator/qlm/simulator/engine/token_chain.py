"""Tokens of an emulated model: each is a hash of all ids before it.

An answer resumed from wrong ids, or with one id lost or doubled, differs from there on, so that a test which
compares tokens finds it.
"""

from collections.abc import Iterable
from typing import Final

from qlm.domain.byte_tokens import EOS_ID

_MASK: Final = (1 << 64) - 1
_OFFSET: Final = 0xCBF29CE484222325
_PRIME: Final = 0x100000001B3
_LETTERS: Final = b"eeeeeeeettttttaaaaaooooooiiiiinnnnnsssshhhhrrrrddlllcuummwwffggyppbvk"
_SPACE: Final = 32
_WORD_ENDS: Final = 5
"""After a letter, one token in this many is a space."""


def fold(digest: int, token_id: int) -> int:
    """Append one id to a digest: a step of the 64-bit FNV-1a hash, with whole ids in place of bytes."""
    return ((digest ^ (token_id + 1)) * _PRIME) & _MASK


class TokenChain:
    """Lower-case words, ended by EOS with probability 1/mean at each token."""

    __slots__ = ("_after_space", "_eos_below", "digest")

    def __init__(self, digest: int, last_id: int, mean_output_tokens: float) -> None:
        """Continue after the ids of a digest.

        Args:
            digest: See `digests`.
            last_id: The last of the ids.
            mean_output_tokens: Average length of an answer, EOS included; 1 or more.
        """
        self.digest = digest
        self._after_space = last_id == _SPACE
        self._eos_below = int((1 << 24) / mean_output_tokens)

    def next_id(self, forbidden: Iterable[int] = ()) -> int:
        """Return the next token, which depends only on the ids so far and `forbidden`."""
        bits = _mix(self.digest)
        token_id = (
            EOS_ID
            if bits & 0xFFFFFF < self._eos_below and EOS_ID not in forbidden
            else self._byte(bits >> 24)
        )
        if token_id in forbidden:
            token_id = next((byte for byte in _LETTERS if byte not in forbidden), token_id)
        self._after_space = token_id == _SPACE
        self.digest = fold(self.digest, token_id)
        return token_id

    def _byte(self, bits: int) -> int:
        if bits % _WORD_ENDS == 0 and not self._after_space:
            return _SPACE
        return _LETTERS[(bits >> 8) % len(_LETTERS)]


def digests(token_ids: Iterable[int], every: int) -> list[int]:
    """Return the digests after each `every` ids, and last the digest of all ids.

    The first ones name the full KV blocks of a prompt: equal digests mean equal prefixes.
    """
    digest = _OFFSET
    marks: list[int] = []
    for count, token_id in enumerate(token_ids, 1):
        digest = ((digest ^ (token_id + 1)) * _PRIME) & _MASK
        if count % every == 0:
            marks.append(digest)
    marks.append(digest)
    return marks


def _mix(bits: int) -> int:
    """Mix a digest over all 64 bits (the finalizer of SplitMix64), since FNV's low bits are weak."""
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)

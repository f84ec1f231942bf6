"""Log probabilities of output tokens, packed: as many numbers for each token, in the order of the tokens.

A request that asks for `top` candidates has, for each token of its output, four bytes each (little-endian):
the log probability of the sampled token, its rank (0 if unknown), and `top - 1` further candidates as token
id and log probability, by rank and without the sampled one. A missing number is NaN, a missing candidate has
`NO_TOKEN`. Single precision is what engines compute in.

Tokens of a prompt have the same, with the token itself before the further candidates, and offsets below 0:
`-n` is the first of `n`.
"""

import base64
import math
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from qlm.domain.errors import InvalidValueError

LOGPROBS_MAX: Final = 20
"""Largest number of candidates per token, the default of vLLM (`--max-logprobs`) and the limit of OpenAI."""

NO_TOKEN: Final = 2**32 - 1

_OWN_ID_AT: Final = 8
"""Where the first candidate begins in what is packed for a token."""


class TokenLogprob(NamedTuple):
    """Log probabilities at one position of the output.

    Attributes:
        sampled: That of the token itself; None if it is not known.
        rank: Its rank, from 1; 0 if it is not known.
        others: Further candidates by rank, each token id and log probability.
    """

    sampled: float | None
    rank: int = 0
    others: tuple[tuple[int, float], ...] = ()


UNKNOWN: Final = TokenLogprob(None)
"""Of a token whose log probabilities are not known: its engine does not report them, or they were lost."""

Piece = tuple[int, str]
"""Part of the packed log probabilities of an output log: output tokens before it, and its bytes in base64.

That of a prompt of n tokens begins at -n.
"""


@lru_cache(maxsize=LOGPROBS_MAX + 3)
def _layout(others: int) -> struct.Struct:
    return struct.Struct("<fI" + "If" * others)


def _others(top: int) -> int:
    return max(top, 1) - 1


def bytes_per_token(top: int) -> int:
    """Return the size of what is packed for one token."""
    return _layout(_others(top)).size


def pack(tokens: Iterable[TokenLogprob], top: int) -> bytes:
    """Pack the log probabilities of tokens; candidates beyond `top` are left out."""
    count = _others(top)
    layout = _layout(count)
    packed = []
    for token in tokens:
        flat = [number for pair in token.others[:count] for number in pair]
        flat += [NO_TOKEN, 0.0] * (count - len(token.others[:count]))
        packed.append(layout.pack(math.nan if token.sampled is None else token.sampled, token.rank, *flat))
    return b"".join(packed)


def unpack(packed: bytes, top: int) -> tuple[TokenLogprob, ...]:
    """Return the log probabilities of tokens.

    Raises:
        InvalidValueError: The bytes are not those of whole tokens.
    """
    layout = _layout(_others(top))
    if len(packed) % layout.size:
        raise InvalidValueError("logprobs", len(packed), f"a multiple of {layout.size} bytes")
    return tuple(map(_token, layout.iter_unpack(packed)))


def _token(numbers: Sequence[float]) -> TokenLogprob:
    sampled, rank, *flat = numbers
    others = zip(flat[::2], flat[1::2], strict=True)
    known = tuple((int(id), value) for id, value in others if id != NO_TOKEN)
    return TokenLogprob(None if math.isnan(sampled) else sampled, int(rank), known)


def pack_prompt(ids: Sequence[int], tokens: Iterable[TokenLogprob], top: int) -> bytes:
    """Pack the tokens of a prompt and their log probabilities, with `top` candidates besides the token."""
    scored = zip(ids, tokens, strict=True)
    named = (each._replace(others=((id, each.sampled or 0.0), *each.others)) for id, each in scored)
    return pack(named, _prompt_top(top))


def unpack_prompt(packed: bytes, top: int) -> tuple[tuple[int, TokenLogprob], ...]:
    """Return the tokens of a prompt, each with its log probabilities.

    Raises:
        InvalidValueError: The bytes are not those of whole tokens, or lack one of them.
    """
    check_prompt(packed, top)
    tokens = unpack(packed, _prompt_top(top))
    return tuple((each.others[0][0], each._replace(others=each.others[1:])) for each in tokens)


def check_prompt(packed: bytes, top: int) -> None:
    """Refuse bytes that `unpack_prompt` cannot unpack.

    Raises:
        InvalidValueError: They are not those of whole tokens, or lack one of them.
    """
    size = prompt_bytes_per_token(top)
    if len(packed) % size:
        raise InvalidValueError("logprobs", len(packed), f"a multiple of {size} bytes")
    ids = packed[_OWN_ID_AT:]
    missing = NO_TOKEN.to_bytes(4, "little")
    if any(ids[at : at + 4] == missing for at in range(0, len(ids), size)):
        raise InvalidValueError("logprobs", "no token", "the tokens of the prompt")


def prompt_bytes_per_token(top: int) -> int:
    """Return the size of what is packed for one token of a prompt."""
    return bytes_per_token(_prompt_top(top))


def _prompt_top(top: int) -> int:
    return top + 2


class LogprobLog:
    """Packed log probabilities from some output token on, to which those of later tokens are added.

    Attributes:
        top: Candidates per token.
        start: Output tokens before the first that it has.
    """

    __slots__ = ("_bytes", "_unknown", "_width", "start", "top")

    def __init__(self, top: int, start: int = 0) -> None:
        self.top = top
        self.start = start
        self._width = bytes_per_token(top)
        self._unknown = pack((UNKNOWN,), top)
        self._bytes = bytearray()

    @property
    def end(self) -> int:
        """Output tokens up to the last that it has."""
        return self.start + len(self._bytes) // self._width

    def put(self, offset: int, packed: bytes) -> None:
        """Write the log probabilities of the tokens from `offset` on; those of a gap before are unknown."""
        if offset < self.start:
            packed, offset = packed[(self.start - offset) * self._width :], self.start
        if (gap := offset - self.end) > 0:
            self._bytes += self._unknown * gap
        at = (offset - self.start) * self._width
        self._bytes[at : at + len(packed)] = packed

    def piece(self, offset: int, end: int) -> Piece | None:
        """Return what it has of the tokens from `offset` up to `end`; None for nothing."""
        offset, end = max(offset, self.start), min(end, self.end)
        if offset >= end:
            return None
        first, last = ((each - self.start) * self._width for each in (offset, end))
        return offset, base64.b64encode(self._bytes[first:last]).decode()

    def tokens(self, offset: int, end: int) -> tuple[TokenLogprob, ...]:
        """Return the log probabilities of the tokens from `offset` up to `end`; unknown where it has none."""
        known_from, known_to = max(offset, self.start), min(end, self.end)
        if known_from >= known_to:
            return (UNKNOWN,) * (end - offset)
        first, last = ((each - self.start) * self._width for each in (known_from, known_to))
        known = unpack(bytes(self._bytes[first:last]), self.top)
        return (UNKNOWN,) * (known_from - offset) + known + (UNKNOWN,) * (end - known_to)


def piece_of_prompt(prompt_tokens: int, packed: bytes) -> Piece:
    """Return the piece with the log probabilities of a whole prompt."""
    return -prompt_tokens, base64.b64encode(packed).decode()


def decoded(piece: Piece) -> tuple[int, bytes]:
    """Return the offset and the bytes of a piece.

    Raises:
        InvalidValueError: It is not base64.
    """
    try:
        return piece[0], base64.b64decode(piece[1], validate=True)
    except ValueError as error:
        raise InvalidValueError("logprobs", piece[1], "bytes in base64") from error

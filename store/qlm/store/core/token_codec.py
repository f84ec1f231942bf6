"""Encoding of token ids: four little-endian bytes each."""

import sys
from array import array
from collections.abc import Sequence
from typing import Final

from qlm.domain.ids import TokenIds

TOKEN_BYTES: Final = 4


def encode_tokens(token_ids: Sequence[int]) -> bytes:
    """Encode token ids, each 0 to `TOKEN_ID_MAX`."""
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def decode_tokens(packed: bytes) -> TokenIds:
    """Decode token ids."""
    token_ids = array("I")
    token_ids.frombytes(packed)
    if sys.byteorder == "big":
        token_ids.byteswap()
    return tuple(token_ids)

"""Token ids as bytes: four little-endian bytes each."""

import sys
from array import array
from typing import Final

from qlm.domain.ids import TokenIds

TOKEN_BYTES: Final = 4


def pack(token_ids: TokenIds) -> bytes:
    """Write token ids, each 0 to 2**32 - 1, as bytes."""
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(packed: bytes) -> TokenIds:
    """Read what `pack` wrote."""
    token_ids = array("I")
    token_ids.frombytes(packed)
    if sys.byteorder == "big":
        token_ids.byteswap()
    return tuple(token_ids)

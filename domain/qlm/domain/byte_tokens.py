"""Vocabulary of emulated models: one token per byte, and an end-of-sequence token."""

from typing import Final

EOS_ID: Final = 256
"""Token id that ends an answer of an emulated model; ids 0 to 255 are the bytes."""

VOCABULARY: Final = 257
"""Number of token ids."""

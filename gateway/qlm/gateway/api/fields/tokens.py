"""Answers of /tokenize and /detokenize, as vLLM has them."""

from collections.abc import Sequence
from typing import TypedDict


class Tokenized(TypedDict):
    """The tokens of a text or a conversation."""

    count: int  # Their number
    max_model_len: int  # The model's context in tokens
    tokens: Sequence[int]  # Token ids
    token_strs: Sequence[str] | None  # Each as the vocabulary has it; null unless asked for


class Detokenized(TypedDict):
    """The text of tokens."""

    prompt: str  # The text; a character whose last bytes are missing is left out

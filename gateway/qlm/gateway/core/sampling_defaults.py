"""Sampling parameters of requests that do not name them."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """A model's own sampling parameters; those that it does not set are vLLM's.

    Attributes:
        max_tokens: Output limit of a chat that names none; None for the rest of the context.
        output_tokens_max: Output limit of every answer; None without one.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    output_tokens_max: int | None = None


VLLM_DEFAULTS: Final = SamplingDefaults()
"""Of a model that sets none."""

DEFAULTED: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
"""Fields of requests that a model has defaults for, besides the output limit."""

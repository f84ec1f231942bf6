"""Tokens that fit into free memory: equation 20 of SLO-aware annealing."""

from typing import Final

MEMORY_UTILITY: Final = 0.9
"""mu: share of the free memory that requests can use; the paper's value for vLLM (section 5.1)."""


def tokens_that_fit(free_bytes: float, token_bytes: float, utility: float = MEMORY_UTILITY) -> float:
    """Return mu M_free / sigma.

    Args:
        free_bytes: M_free.
        token_bytes: sigma, KV cache of one token; positive.
        utility: mu.
    """
    return utility * free_bytes / token_bytes

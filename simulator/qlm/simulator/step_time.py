"""How long one iteration of continuous batching takes, from a profile."""

from typing import Final

from qlm.rct_estimator.profile import Profile

NS_PER_MS: Final = 1_000_000


def step_ms(
    profile: Profile, *, prefills: int, prefill_tokens: int, decodes: int, decode_context_tokens: int
) -> float:
    """Time one iteration that computes prompts and decodes at once.

    Equations 14 and 15 of SLO-aware annealing, each with the sum over the batch of what it has per
    request. An iteration that does both reads the weights once, so the smaller of the two constants
    counts once only.

    Args:
        profile: Of the model on its accelerator.
        prefills: Requests with prompt tokens in it.
        prefill_tokens: Prompt tokens computed in it, in all.
        decodes: Requests that get one token more.
        decode_context_tokens: Length of their texts, in all.

    Returns:
        Milliseconds; 0 for an empty iteration.
    """
    prefill = profile.prefill_ms(prefills, prefill_tokens / prefills) if prefills else 0.0
    decode = profile.decode_ms(decodes, decode_context_tokens / decodes) if decodes else 0.0
    shared = min(profile.prefill.delta, profile.decode.delta) if prefills and decodes else 0.0
    return prefill + decode - shared

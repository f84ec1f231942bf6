"""What an eviction discards: the KV cache of running requests, in the time to compute it again."""

from qlm.rct_estimator.profiles.profile import Profile


def recompute_token_s(profile: Profile) -> float:
    """Return the seconds to compute a prompt token again.

    A full iteration of prompts grows by the last slope of the linear term per token, and by the square term
    at the token's position: that of the middle of a text of half the largest context. The iteration itself is
    paid either way, since the last token is always computed.
    """
    iteration, position = profile.iteration, profile.context_tokens / 4
    return (iteration.last_slope_ms + iteration.square_ms * position) / 1000


def discarded_s(tokens: float, token_s: float) -> float:
    """Return the seconds that an eviction discards.

    Args:
        tokens: Prompt and output tokens of what is evicted.
        token_s: Seconds to compute one of them again.
    """
    return tokens * token_s

"""How long request groups take on an instance, from its profile (QLM, equations 1 to 5).

Tokens still to be produced are a sum of independent lengths, so n requests of mean length mu take
n mu / Theta to leave the queue, and the last one then needs its own prefill and decode.
"""

from typing import Final

from qlm.rct_estimator.normal import NOTHING, Normal
from qlm.rct_estimator.profile import Profile

BATCHING_INEFFICIENCY: Final = 1.1
"""Epsilon of equation 4: decode slows down while others are prefilled or preempted; dimensionless.

A round figure until a profile carries a measured one.
"""


def mean_batch(profile: Profile, prompt_tokens: float, output_tokens: float) -> float:
    """Requests that run at once: bounded by places and by KV cache at half the output; at least 1."""
    per_request = prompt_tokens + output_tokens / 2
    return max(1.0, min(profile.seqs_max, profile.kv_tokens / max(1.0, per_request)))


def request_s(profile: Profile, prompt_tokens: float, output_tokens: float) -> float:
    """Seconds of a saturated instance that one request costs: mu / Theta, prefill included."""
    batch = mean_batch(profile, prompt_tokens, output_tokens)
    token_ms = profile.decode_ms(batch, prompt_tokens + output_tokens / 2) / batch
    return (profile.prefill_ms(1, prompt_tokens) + output_tokens * token_ms) / 1000


def drain_time(profile: Profile, requests: int, prompt_tokens: float, output: Normal) -> Normal:
    """Time until the last of `requests` requests has left the queue (equations 2 and 3), seconds.

    Args:
        profile: Of the model on the instance's accelerator.
        requests: Waiting requests; 0 or more.
        prompt_tokens: Mean prompt length.
        output: Output length of one request, tokens.
    """
    batch = mean_batch(profile, prompt_tokens, output.mean)
    token_s = profile.decode_ms(batch, prompt_tokens + output.mean / 2) / batch / 1000
    mean_s = requests * request_s(profile, prompt_tokens, output.mean)
    return Normal(mean_s, requests * output.var * token_s * token_s)


def tail_time(profile: Profile, prompt_tokens: float, output: Normal) -> Normal:
    """Prefill and decode of one request in a full batch (equations 1 and 4), seconds."""
    batch = mean_batch(profile, prompt_tokens, output.mean)
    step_ms = profile.decode_ms(batch, prompt_tokens + output.mean / 2) * BATCHING_INEFFICIENCY
    return Normal(profile.prefill_ms(1, prompt_tokens) / 1000) + output.scaled(step_ms / 1000)


def busy_time(profile: Profile, *, running: int, parked: int) -> Normal:
    """Time until an instance can start something new, seconds: nothing while it has free places.

    Parked requests go before new ones; each is taken for an average one of 256 tokens each way.
    """
    if running < profile.seqs_max and not parked:
        return NOTHING
    return Normal(request_s(profile, 256.0, 256.0) * (parked + 1))

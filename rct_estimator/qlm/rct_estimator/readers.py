"""How many requests a batch may hold so that it keeps up with its readers.

A reader is a request with a pace r, tokens per second. A batch of b requests gives each of them as many,

    supply(b) = 1 / step(b)

whatever each one needs. step(b) is the mean iteration, with the prompts of those that follow
(`steady_state`). It grows with b, so the fastest reader bounds the batch of all:

    B(r) = max { b <= B : supply(b) >= r / SHARE }

B is the full batch by slots and KV cache. Gamma of TokenFlow, equation 6, is b supply(b) here. Its test, sum
of paces <= Gamma, assumes that the tokens can be dealt out as readers need them. An engine gives each member
of its batch one token per iteration instead, so what a slow reader does not need is no use to a fast one.
"""

from typing import Final

from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.throughput import SteadyState, full_batch, steady_state
from qlm.rct_estimator.workload import Workload

SHARE: Final = 0.95
"""Share of the supply that may be promised to readers; the rest is for iterations longer than the mean."""


def paced_state(profile: Profile, workload: Workload, tokens_per_s: float | None) -> SteadyState:
    """Return the steady state of the largest batch that keeps up with readers of a pace.

    Where a request alone is slower than that pace, no bound helps: the batch is full, as without a pace.

    Args:
        profile: Profile of the model on the accelerator of the instance.
        workload: All requests in the batch, readers and others.
        tokens_per_s: Pace of its fastest reader; None without readers.
    """
    full = steady_state(profile, workload)
    if tokens_per_s is None or _keeps_up(full, tokens_per_s):
        return full
    bounded = steady_state(profile, workload, batch=1.0)
    if not _keeps_up(bounded, tokens_per_s):
        return full
    least, most = 1, int(full.batch) + 1
    while most - least > 1:
        middle = (least + most) // 2
        state = steady_state(profile, workload, batch=float(middle))
        if _keeps_up(state, tokens_per_s):
            least, bounded = middle, state
        else:
            most = middle
    return bounded


def reader_bound(profile: Profile, workload: Workload, tokens_per_s: float) -> int | None:
    """Return the largest batch that keeps up with readers of a pace: None for any, 0 for none."""
    state = paced_state(profile, workload, tokens_per_s)
    if not _keeps_up(state, tokens_per_s):
        return 0
    return int(state.batch) if state.batch < full_batch(profile, workload) else None


def time_behind_s(steps: FloatArray, iteration_s: float, tokens_per_s: float | None) -> FloatArray:
    """Return by how much more the last of some tokens after the first is late than the first, elementwise.

    The last is due `steps` / r after the first; 0 if it comes sooner, or without a reader.
    """
    per_token_s = 0.0 if tokens_per_s is None else max(0.0, iteration_s - 1 / tokens_per_s)
    return steps * per_token_s


def _keeps_up(state: SteadyState, tokens_per_s: float) -> bool:
    return state.iteration_s * tokens_per_s <= SHARE

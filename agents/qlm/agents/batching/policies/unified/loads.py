"""Time to bring the KV cache of a request back, from host memory or by computing it again.

    load = min(bytes / bandwidth + the rest computed, tokens a)

with a the time per token of a prompt. A new request loads its prompt.
"""

from typing import NamedTuple

import numpy as np

from qlm.agents.batching.policies.unified.capacity import prompt_token_s
from qlm.agents.batching.view import Flags, Floats, View


class Loads(NamedTuple):
    """Columns, one entry per request of the view.

    Attributes:
        takes_s: Time to bring its KV cache back, were it preempted now.
        computed_s: The part of that time in which texts are computed again. In the rest, copies are loaded
            while the batch goes on.
        recomputes: To compute it again is faster than to load what host memory has of it.
    """

    takes_s: Floats
    computed_s: Floats
    recomputes: Flags


def loads(view: View) -> Loads:
    """Return the time to load each request, whether it runs now or not."""
    token_s, machine = prompt_token_s(view), view.machine
    whole_s = view.tokens * token_s
    link_s = machine.token_bytes / machine.link_bytes_per_s if machine.link_bytes_per_s > 0 else np.inf
    copied = view.host_tokens > 0
    moved_s = np.where(copied, view.host_tokens * link_s, 0.0) if np.isfinite(link_s) else np.inf
    rest_s = (view.tokens - view.host_tokens) * token_s
    loaded_s = np.where(copied, moved_s + rest_s, whole_s)
    recomputes = copied & (whole_s < loaded_s)
    computed_s = np.where(copied & ~recomputes, rest_s, whole_s)
    return Loads(np.minimum(loaded_s, whole_s), computed_s, recomputes)


def link_wait_s(view: View) -> float:
    """Return how long the loads that were started still take."""
    return max(0.0, view.machine.load_free_s - view.now_s)

"""Time to bring the KV of a request to the accelerator: load it from host memory, or compute it."""

from typing import NamedTuple

import numpy as np

from qlm.agents.batching.step_time import prompt_share_s
from qlm.agents.batching.view import Flags, Floats, View


class Restoring(NamedTuple):
    """Times by row, seconds.

    Attributes:
        load_s: With the KV that host memory has: queues of the link, transfer, and what is left to compute.
        compute_s: All of it computed.
        compute_share_s: What computing all of it adds to iterations that compute others too.
    """

    load_s: Floats
    compute_s: Floats
    compute_share_s: Floats

    @property
    def least_s(self) -> Floats:
        """The shorter of both (TokenFlow, section 3.3: t_overhead = min(t_IO, t_recompute))."""
        return np.minimum(self.load_s, self.compute_s)

    @property
    def computes(self) -> Flags:
        """Where t_IO is no shorter than computing (TokenFlow, section 4.2.3); everywhere inside."""
        return np.asarray(self.compute_s <= self.load_s)


def restoring(view: View) -> Restoring:
    """Return the times of all rows: 0 inside, and the rest of the transfer while one loads.

    t_IO = t_evict_queue + t_evict + t_load_queue + t_load (TokenFlow, section 4.2.3). What host memory does
    not have is lost with the blocks, so t_evict is 0, and the rest is computed. The paper estimates computing
    by the mean of recent prompts; here it is the profile.
    """
    machine, outside = view.machine, view.outside
    wait_s = max(0.0, machine.load_free_s - view.now_s)
    share_s = prompt_share_s(view, view.tokens) * outside
    # Alone it takes at least an iteration.
    least_s = (machine.iteration.host_ms + machine.iteration.linear(1)) / 1000
    compute_s = np.maximum(share_s, least_s * outside)
    load_s = compute_s.copy()
    stored = (outside & (view.host_tokens > 0)).nonzero()[0]
    if len(stored):
        queues_s = wait_s + max(0.0, machine.write_free_s - view.now_s)
        moved = view.host_tokens[stored]
        rest_s = prompt_share_s(view, np.maximum(0, view.tokens[stored] - moved))
        load_s[stored] = queues_s + moved * (machine.token_bytes / machine.link_bytes_per_s) + rest_s
    loading = view.loading
    load_s[loading], compute_s[loading] = wait_s, np.inf
    return Restoring(load_s, compute_s, share_s)

"""Time from a batch slot to what the SLO measures, by the size of the batch, for one class on one kind."""

import math
from bisect import bisect_left
from dataclasses import replace
from typing import Final

from qlm.rct_estimator.cluster.service_table import ClassOnKind, response_s
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.throughput import steady_state

STEP: Final = 1.3
"""Ratio of the batch sizes whose steady states are computed; between them, times are interpolated."""


class BatchTails:
    """Tails of a class on a kind; each steady state is computed when it is first needed.

    Args:
        profile: Profile of the model on the kind.
        full: The class in a full batch.
        first_token: The SLO measures the first token.
    """

    def __init__(self, profile: Profile, full: ClassOnKind, *, first_token: bool) -> None:
        self._profile = profile
        self._full = full
        self._first_token = first_token
        steps = math.ceil(math.log(max(full.state.batch, 1.0)) / math.log(STEP))
        self._sizes = [*(STEP**step for step in range(steps)), full.state.batch]
        self._known: dict[int, Normal] = {}

    def at(self, batch: float) -> Normal:
        """Return the tail in a batch of that size, at most the full one."""
        sizes = self._sizes
        upper = min(bisect_left(sizes, batch), len(sizes) - 1)
        above = self._of(upper)
        if upper == 0 or batch >= sizes[upper]:
            return above
        below = self._of(upper - 1)
        share = (batch - sizes[upper - 1]) / (sizes[upper] - sizes[upper - 1])
        return Normal(
            below.mean + share * (above.mean - below.mean), below.var + share * (above.var - below.var)
        )

    def _of(self, index: int) -> Normal:
        if index not in self._known:
            self._known[index] = self._compute(self._sizes[index])
        return self._known[index]

    def _compute(self, batch: float) -> Normal:
        full = self._full
        state = full.state
        if batch < state.batch:
            state = steady_state(self._profile, state.workload, batch=batch)
        on_kind = replace(full, state=state)
        values_s = response_s(on_kind, first_token=self._first_token)
        # Prompts of others delay the first token where they do not have to wait for a slot.
        queue_s = state.queue_s if batch < full.state.batch else 0.0
        return Normal(float(values_s.mean()) + queue_s, float(values_s.var()))

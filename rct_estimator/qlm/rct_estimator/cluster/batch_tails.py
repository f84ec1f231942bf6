"""Time from a batch slot to what the SLO measures, by the size of the batch, for one class on one kind."""

import math
from bisect import bisect_left
from dataclasses import replace
from typing import Final, NamedTuple

from qlm.rct_estimator.cluster.service_table import ClassOnKind, response_s
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.throughput import steady_state

STEP: Final = 1.3
"""Ratio of the batch sizes whose steady states are computed; between them, times are interpolated."""


class _Tail(NamedTuple):
    time: Normal
    prompts_before_s: float


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
        self._known: dict[int, _Tail] = {}

    def at(self, batch: float, prompts_max_s: float = math.inf) -> Normal:
        """Return the tail in a batch.

        Args:
            batch: Requests in the batch; at most the full one counts.
            prompts_max_s: Time that the prompts of others before its own take at most.
        """
        sizes = self._sizes
        upper = min(bisect_left(sizes, batch), len(sizes) - 1)
        above = self._of(upper)
        below, share = above, 0.0
        if upper > 0 and batch < sizes[upper]:
            below = self._of(upper - 1)
            share = (sizes[upper] - batch) / (sizes[upper] - sizes[upper - 1])
        before_s = _between(above.prompts_before_s, below.prompts_before_s, share)
        return Normal(
            _between(above.time.mean, below.time.mean, share) - max(0.0, before_s - prompts_max_s),
            _between(above.time.var, below.time.var, share),
        )

    def _of(self, index: int) -> _Tail:
        if index not in self._known:
            self._known[index] = self._compute(self._sizes[index])
        return self._known[index]

    def _compute(self, batch: float) -> _Tail:
        full = self._full
        state = full.state
        if batch < state.batch:
            state = steady_state(self._profile, state.workload, batch=batch)
        on_kind = replace(full, state=state)
        values_s = response_s(on_kind, first_token=self._first_token)
        # Prompts of others delay the first token where they do not have to wait for a slot.
        queue_s = state.queue_s if batch < full.state.batch else 0.0
        time = Normal(float(values_s.mean()) + queue_s, float(values_s.var()))
        return _Tail(time, state.prompts_before_s)


def _between(above: float, below: float, share: float) -> float:
    return above + share * (below - above)

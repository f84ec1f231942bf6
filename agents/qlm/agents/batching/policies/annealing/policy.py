"""SLO-aware annealing as a batch policy."""

from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.agents.batching.decision import Decision
from qlm.agents.batching.policies.annealing.fitting import equations_of
from qlm.agents.batching.policies.annealing.jobs import jobs_of
from qlm.agents.batching.policies.annealing.latency import latency
from qlm.agents.batching.policies.annealing.search import Search
from qlm.agents.batching.view import View
from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import RequestId
from qlm.rct_estimator.profiles.iteration import Equations

ORDERED_MAX: Final = 100
"""Most waiting requests that a search orders: it bounds the time of a decision. Later arrivals wait behind
them (ours)."""

SEED: Final = 0


class Mode(StrEnum):
    """How the batches of the search reach the engine."""

    FAITHFUL = "faithful"
    """One batch at a time: the next one when all of it have ended, as the paper sends them."""
    CONTINUOUS = "continuous"
    """The whole order: the next request comes in when there is room (ours)."""


class Annealing:
    """Run the order and the batches of the highest G = requests in time / sum of latencies (equation 2).

    It never preempts. `FAITHFUL` remembers its present batch, and nothing else is remembered.
    """

    def __init__(
        self,
        mode: Mode = Mode.FAITHFUL,
        *,
        rng: np.random.Generator | None = None,
        batch_max: int | None = None,
        early_stop: bool = True,
        equations: Equations | None = None,
    ) -> None:
        """Make the policy of one instance.

        Args:
            mode: How batches are handed over.
            rng: Source of the draws of the search, read once; None for one of a fixed seed.
            batch_max: Most requests of a batch; None for the batch slots of the engine.
            early_stop: Whether the search ends at once if the order by latency meets all objectives.
            equations: Coefficients of equations 14 and 15; None to fit them to the iterations of the engine.

        Raises:
            InvalidValueError: `batch_max` is not positive.
        """
        if batch_max is not None and batch_max < 1:
            raise InvalidValueError("batch_max", batch_max, "at least 1")
        self._mode, self._batch_max, self._equations = mode, batch_max, equations
        self._search = Search(np.random.default_rng(SEED) if rng is None else rng, early_stop=early_stop)
        self._batch: frozenset[RequestId] = frozenset()

    def compile(self) -> None:
        """Compile the search now, not in the first decision; it takes seconds."""
        self._search.compile()

    def decide(self, view: View) -> Decision:
        """Return the present batch and what is inside; with `CONTINUOUS`, or after a batch, search."""
        by_arrival = np.argsort(view.arrival_s, kind="stable")
        inside = by_arrival[view.inside[by_arrival]]
        outside = by_arrival[~view.inside[by_arrival]]
        if self._mode is Mode.CONTINUOUS:
            return self._decided(view, inside, *self._batches(view, outside, self._begin_s(view, inside)))
        # A batch goes on while one of it has not ended: inside, not yet admitted, or preempted.
        rest = outside[[view.ids[row] in self._batch for row in outside]] if len(outside) else outside
        if not len(inside) and not len(rest):
            batches = self._batches(view, outside, 0.0)
            rest = batches[0] if batches else rest
            self._batch = frozenset(view.ids[row] for row in rest)
        return self._decided(view, inside, rest)

    def room(self, view: View) -> int:
        """Return how many more requests fit into the batch slots and the search."""
        return max(0, view.machine.seqs_max + ORDERED_MAX - len(view.ids))

    def _batches(
        self, view: View, outside: npt.NDArray[np.int64], begin_s: float
    ) -> list[npt.NDArray[np.int64]]:
        """Return the batches in order; what the search does not see comes last, by arrival."""
        searched, later = outside[:ORDERED_MAX], outside[ORDERED_MAX:]
        if not len(searched):
            return []
        jobs = jobs_of(
            view, searched, self._coefficients(view), batch_max=self._largest(view), begin_s=begin_s
        )
        # Within a batch the order means nothing to the search: by arrival.
        batches = [searched[sorted(batch)] for batch in self._search(jobs).batches]
        return [*batches, later] if len(later) else batches

    def _begin_s(self, view: View, inside: npt.NDArray[np.int64]) -> float:
        """Return when a place is free, by equation 16: where all are taken, at the first end (ours)."""
        if len(inside) < self._largest(view):
            return 0.0
        text, output = view.tokens[inside].astype(np.float64), np.maximum(1.0, view.left_mean[inside])
        times = latency(self._coefficients(view), len(inside), text, output)
        return float((times.tpot_s[-1] * output).min())

    def _largest(self, view: View) -> int:
        slots = view.machine.seqs_max
        return slots if self._batch_max is None else min(slots, self._batch_max)

    def _coefficients(self, view: View) -> Equations:
        return self._equations or equations_of(view.machine.iteration)

    @staticmethod
    def _decided(view: View, *parts: npt.NDArray[np.int64]) -> Decision:
        return Decision(run=tuple(view.ids[row] for part in parts for row in part))

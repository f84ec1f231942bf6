"""Waiting time of a request behind a virtual queue, as a normal distribution (QLM, equations 2 and 3).

A request starts when the requests before it have left a batch slot. Their prompts are always computed first.
Their decodes overlap with the filling of a batch that was empty. For the n-th request,
W = n p + g(max(0, n x - fill)), and n p while n slots are free. Here p and x are the prefill and decode cost
of one request to the full batch (together mu / Theta). For an empty batch `fill` is `SteadyState.fill_s`, and
g (`decodes_from_empty_s`) is the speed-up until the batch is in steady state. Behind a full batch fill is 0
and g(y) = y.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.length_predictive import EDGES, TOKENS_MAX, FloatArray, LengthPredictive
from qlm.rct_estimator.normal import NOTHING, Normal
from qlm.rct_estimator.throughput import SteadyState, decodes_from_empty_s

_FINER = 4
"""Grid points per length bin for the time to empty a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePart:
    """Consecutive requests of one class in a virtual queue.

    Attributes:
        state: Steady state of the instance with a full batch of them.
        requests: Number of requests; 0 or more.
        cls: Identity of the class: the uncertainty of its mean length is common to all its parts.
        swap: Unloading and loading times, if another model must be loaded first.
        emptying: Time to empty the batch before a swap, from the start of its last request.
    """

    state: SteadyState
    requests: float
    cls: Hashable = None
    swap: Normal | None = None
    emptying: Normal = NOTHING

    def __post_init__(self) -> None:
        if not (math.isfinite(self.requests) and self.requests >= 0):
            raise InvalidValueError("requests", self.requests, "a number, 0 or more")


@dataclass(slots=True)
class _Walk:
    """Running sums along a virtual queue."""

    until_s: float
    var: float
    free: float
    slots: float = 0.0
    fill_s: float = -1.0
    transients: Sequence[tuple[float, float]] = ()
    requests: float = 0.0
    prompts_s: float = 0.0
    decodes_s: float = 0.0
    worked_s: float = 0.0
    uncertainty: float = 0.0
    of_class_s: dict[Hashable, float] = field(default_factory=dict)

    @property
    def mean_s(self) -> float:
        return self.until_s + self.prompts_s + self.behind_s

    @property
    def behind_s(self) -> float:
        if self.requests <= self.slots:
            return 0.0
        behind_s = max(0.0, self.decodes_s - self.fill_s)
        return (
            float(decodes_from_empty_s(np.array(behind_s), *self.transients)) if self.transients else behind_s
        )

    def load(self, part: QueuePart) -> None:
        """Empty the batch and swap the model."""
        assert part.swap is not None
        self.until_s = self.mean_s + part.emptying.mean + part.swap.mean
        self.var += part.emptying.var + part.swap.var
        self.prompts_s = self.decodes_s = self.requests = 0.0
        self.fill_s, self.free = -1.0, math.inf

    def take(self, part: QueuePart) -> None:
        """Start the requests of a part."""
        state = part.state
        if self.fill_s < 0:
            self.slots = min(self.free, state.batch)
            begun = self.slots / state.batch
            self.fill_s = state.fill_s * begun
            self.transients = _transients(state, begun)
        decode_s = state.request_s - state.prompt_s
        before_s = self.behind_s
        self.requests += part.requests
        self.prompts_s += part.requests * state.prompt_s
        self.decodes_s += part.requests * decode_s
        # Requests that fill slots free at the start wait for no decode.
        waited_for_s = self.behind_s - before_s
        self.var += waited_for_s * decode_s * state.work_cv2
        self.var += part.requests * state.prompt_s**2 * state.prompt_cv2
        worked_s = part.requests * state.prompt_s + waited_for_s
        self.worked_s += worked_s
        self.uncertainty = max(self.uncertainty, state.uncertainty)
        uncertainty_s = waited_for_s * state.work_uncertainty
        self.of_class_s[part.cls] = self.of_class_s.get(part.cls, 0.0) + uncertainty_s


def waiting_time(parts: Sequence[QueuePart], *, busy: Normal = NOTHING, free: float = 0.0) -> Normal:
    """Return the time until the last request of the last part gets a batch slot, seconds.

    For the r-th request of a group, pass r requests of the group in the last part.

    Args:
        parts: The virtual queue up to and including that request, in order; may be empty.
        busy: Time before anything can start, an engine load for instance.
        free: Batch slots free now for the loaded model; `inf` for an idle instance.

    Returns:
        Mean: sum n mu / Theta, less the saving of an empty batch, plus swaps. Variance: sum
        n sigma^2 / Theta^2 (independent outputs and prompts), plus the squared effect of the uncertainty of
        each class's mean (common to its requests), plus that of the instance's speed.
    """
    walk = _Walk(until_s=busy.mean, var=busy.var, free=free)
    for part in parts:
        if part.swap is not None:
            walk.load(part)
        walk.take(part)
    common = sum(seconds**2 for seconds in walk.of_class_s.values())
    return Normal(walk.mean_s, walk.var + common + (walk.uncertainty * walk.worked_s) ** 2)


def waiting_times(state: SteadyState, ranks: npt.ArrayLike, *, free: float = 0.0) -> FloatArray:
    """Return the mean waiting times of requests of one class behind a batch, seconds, shape (n,).

    Args:
        state: Steady state of the instance with a full batch.
        ranks: Positions in the queue from 1; shape (n,).
        free: Batch slots free at the start; `inf` for an idle instance.
    """
    ranks = np.asarray(ranks, dtype=np.float64)
    slots = min(free, state.batch)
    begun = slots / state.batch
    behind_s = np.maximum(0.0, ranks * (state.request_s - state.prompt_s) - state.fill_s * begun)
    behind_s = np.where(ranks <= slots, 0.0, decodes_from_empty_s(behind_s, *_transients(state, begun)))
    return np.asarray((ranks - 1) * state.prompt_s + behind_s, dtype=np.float64)


def _transients(state: SteadyState, begun: float) -> list[tuple[float, float]]:
    """Return the transients of a batch of which the share `begun` starts empty."""
    transients = (
        (state.residual_transient_share, state.residual_transient_s),
        (state.age_transient_share, state.age_transient_s),
    )
    return [(share * begun, scale_s) for share, scale_s in transients if share * begun]


def emptying_times(
    state: SteadyState,
    lengths: LengthPredictive,
    *,
    requests: float = math.inf,
    cap: float = TOKENS_MAX,
) -> tuple[Normal, Normal]:
    """Return the time from the last request's start until all running requests have ended, seconds.

    That request runs its whole length. The B - 1 beside it are at a random age; if there are at most B in
    total, each has just started. The longest decides: P(longest <= x) is the product. This approximates
    equation 5, C = max_q C_q: the requests depend on each other through the queue only before that start.

    Args:
        state: Steady state of the instance with a full batch.
        lengths: Output length of each request.
        requests: Number of requests of the class.
        cap: Output limit, tokens.

    Returns:
        First where other requests follow on the same model, so that the batch stays full; then where none
        follow, so that iterations get faster.
    """
    tokens, alive, running = _ends(state.batch, lengths, requests, cap)
    steps_s = np.full(len(alive), state.iteration_s), state.step_s(alive)
    tail, emptying = (_emptying(state, tokens, running, step_s) for step_s in steps_s)
    return tail, emptying


def _emptying(state: SteadyState, tokens: FloatArray, running: FloatArray, step_s: FloatArray) -> Normal:
    mean, square = _survival_moments(tokens, running, step_s)
    prefill_s = max(0.0, state.prefill_s - state.iteration_s)
    return Normal(mean + prefill_s, max(0.0, square - mean**2))


def _ends(
    batch: float, lengths: LengthPredictive, requests: float, cap: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return a grid of tokens, the mean number still running after each, and P(any is running)."""
    tokens = _grid(cap)
    new = lengths.outlives(tokens, cap)
    # min(O, cap) may equal cap: such a request runs up to the limit itself.
    new[-1] = 0.0 if cap >= TOKENS_MAX else float(np.interp(cap, EDGES, lengths.survival))
    if requests <= batch:
        return tokens, requests * new, 1 - (1 - new) ** requests
    old = 1 - lengths.age_area(tokens, cap)
    beside = batch - 1
    return tokens, beside * old + new, 1 - (1 - old) ** beside * (1 - new)


@lru_cache(maxsize=256)
def _grid(cap: float) -> FloatArray:
    """Return a grid of tokens up to the limit, finer than the length bins; read-only."""
    edges = np.append(EDGES[cap > EDGES], min(cap, TOKENS_MAX))
    tokens: FloatArray = np.interp(
        np.arange((len(edges) - 1) * _FINER + 1) / _FINER, np.arange(len(edges)), edges
    )
    tokens.flags.writeable = False
    return tokens


def _survival_moments(tokens: FloatArray, running: FloatArray, step_s: FloatArray) -> tuple[float, float]:
    """Return mean and mean square of a time with survival `running` at `tokens` (trapezoidal rule)."""
    rate = (step_s[1:] + step_s[:-1]) / 2 * np.diff(tokens)
    clock = np.concatenate([[0.0], np.cumsum(rate)])
    slices = (running[1:] + running[:-1]) / 2 * rate
    return float(slices.sum()), float(np.sum(slices * (clock[1:] + clock[:-1])))

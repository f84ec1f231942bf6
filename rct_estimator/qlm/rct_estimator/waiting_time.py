"""How long requests wait behind a virtual queue, as a distribution (QLM, equations 2 and 3).

A request gets its place when the ones ahead have left room. Their prompts are computed in any case, while
their decodes overlap with those that fill a batch which was empty. Up to the n-th request,
W = n p + g(max(0, n x - fill)), and n p while n places are free; p and x are what one request's prefill and
decode cost the full batch (together mu / Theta). For an empty batch `fill` is `SteadyState.fill_s`, and g
(`settled_s`) says how much faster it decodes until it has settled; behind a full one g(y) = y and fill is 0.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.length_predictive import EDGES, TOKENS_MAX, FloatArray, LengthPredictive
from qlm.rct_estimator.normal import NOTHING, Normal
from qlm.rct_estimator.throughput import SteadyState, settled_s

_FINER = 4
"""Points per bin at which the end of a batch is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePart:
    """Consecutive requests of one class in a virtual queue.

    Attributes:
        state: Of the instance when its batch is full of them.
        requests: How many; 0 or more.
        cls: Identity of the class; doubt about its mean length is common to all its parts.
        swap: If another model is to be loaded first, how long unloading and loading take.
        emptying: With a swap: how long the batch before runs on after its last request got its place.
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
    """Sums up to a point of a virtual queue."""

    until_s: float
    var: float
    free: float
    places: float = 0.0
    fill_s: float = -1.0
    savings: Sequence[tuple[float, float]] = ()
    requests: float = 0.0
    prompts_s: float = 0.0
    decodes_s: float = 0.0
    worked_s: float = 0.0
    doubt: float = 0.0
    of_class_s: dict[Hashable, float] = field(default_factory=dict)

    @property
    def mean_s(self) -> float:
        return self.until_s + self.prompts_s + self.behind_s

    @property
    def behind_s(self) -> float:
        if self.requests <= self.places:
            return 0.0
        behind_s = max(0.0, self.decodes_s - self.fill_s)
        return float(settled_s(np.array(behind_s), *self.savings)) if self.savings else behind_s

    def load(self, part: QueuePart) -> None:
        """Let the batch run empty and change the model."""
        assert part.swap is not None
        self.until_s = self.mean_s + part.emptying.mean + part.swap.mean
        self.var += part.emptying.var + part.swap.var
        self.prompts_s = self.decodes_s = self.requests = 0.0
        self.fill_s, self.free = -1.0, math.inf

    def take(self, part: QueuePart) -> None:
        """Give places to the requests of a part."""
        state = part.state
        if self.fill_s < 0:
            self.places = min(self.free, state.batch)
            begun = self.places / state.batch
            self.fill_s = state.fill_s * begun
            self.savings = _savings(state, begun)
        decode_s = state.request_s - state.prompt_s
        before_s = self.behind_s
        self.requests += part.requests
        self.prompts_s += part.requests * state.prompt_s
        self.decodes_s += part.requests * decode_s
        # Those that fill the free places at the start have nobody to wait for.
        waited_for_s = self.behind_s - before_s
        self.var += waited_for_s * decode_s * state.work_cv2
        self.var += part.requests * state.prompt_s**2 * state.prompt_cv2
        worked_s = part.requests * state.prompt_s + waited_for_s
        self.worked_s += worked_s
        self.doubt = max(self.doubt, state.doubt)
        doubt_s = waited_for_s * state.work_doubt
        self.of_class_s[part.cls] = self.of_class_s.get(part.cls, 0.0) + doubt_s


def waiting_time(parts: Sequence[QueuePart], *, busy: Normal = NOTHING, free: float = 0.0) -> Normal:
    """Time until the last request of the last part gets its place in the batch, seconds.

    Behind the r - 1 first requests of a group waits the r-th: say r requests of it in the last part.

    Args:
        parts: The virtual queue up to that request, in order; may be empty.
        busy: Before anything can start: an engine that is being loaded, for instance.
        free: Places free at present for the model that is loaded; `inf` for an idle instance.

    Returns:
        Mean sum n mu / Theta less what an empty batch saves, plus swaps; variance sum n sigma^2 / Theta^2
        (independent lengths, those of prompts likewise), plus the square of what the doubt about each
        class's mean amounts to (common to its requests), plus the square of what the doubt about the
        instance's speed does.
    """
    walk = _Walk(until_s=busy.mean, var=busy.var, free=free)
    for part in parts:
        if part.swap is not None:
            walk.load(part)
        walk.take(part)
    common = sum(seconds**2 for seconds in walk.of_class_s.values())
    return Normal(walk.mean_s, walk.var + common + (walk.doubt * walk.worked_s) ** 2)


def waiting_times(state: SteadyState, places: npt.ArrayLike, *, free: float = 0.0) -> FloatArray:
    """Mean waiting time of the r-th request of one class behind a batch, for several r at once, seconds.

    Args:
        state: Of the instance when its batch is full.
        places: The r, from 1; shape (n,).
        free: Places that are free at the start; `inf` for an idle instance.
    """
    ranks = np.asarray(places, dtype=np.float64)
    places = min(free, state.batch)
    begun = places / state.batch
    behind_s = np.maximum(0.0, ranks * (state.request_s - state.prompt_s) - state.fill_s * begun)
    behind_s = np.where(ranks <= places, 0.0, settled_s(behind_s, *_savings(state, begun)))
    return np.asarray((ranks - 1) * state.prompt_s + behind_s, dtype=np.float64)


def _savings(state: SteadyState, begun: float) -> list[tuple[float, float]]:
    """What `settled_s` is to know of a batch of which such a share begins empty."""
    savings = (state.piling_share, state.piling_s), (state.young_share, state.settling_s)
    return [(share * begun, scale_s) for share, scale_s in savings if share * begun]


def emptying_time(
    state: SteadyState,
    lengths: LengthPredictive,
    *,
    requests: float = math.inf,
    cap: float = TOKENS_MAX,
    followed: bool = False,
) -> Normal:
    """Time from the last request's getting its place until all that run have ended, seconds.

    That request runs its whole length; the B - 1 beside it are met at a random moment of theirs. If there
    are no more than B in all, each has just begun. The longest rules: P(longest <= x) is the product.

    Args:
        state: Of the instance when its batch is full.
        lengths: Output length of each request.
        requests: How many the class has in all.
        cap: Output limit, tokens.
        followed: Others take the places that become free, so that iterations do not get faster.
    """
    tokens, alive, running = _ends(state.batch, lengths, requests, cap)
    step_s = np.full(len(alive), state.iteration_s) if followed else state.step_s(alive)
    return _emptying(state, tokens, running, step_s)


def emptying_times(
    state: SteadyState,
    lengths: LengthPredictive,
    *,
    requests: float = math.inf,
    cap: float = TOKENS_MAX,
) -> tuple[Normal, Normal]:
    """Return `emptying_time` where others follow, and where nobody does; most of the work is the same."""
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
    """Return a grid of tokens, how many run on after each, and P(any does)."""
    edges = np.append(EDGES[cap > EDGES], min(cap, TOKENS_MAX))
    tokens = np.interp(np.arange((len(edges) - 1) * _FINER + 1) / _FINER, np.arange(len(edges)), edges)
    new = lengths.outlives(tokens, cap)
    # min(O, cap) may equal cap: it runs right up to it.
    new[-1] = 0.0 if cap >= TOKENS_MAX else float(np.interp(cap, EDGES, lengths.survival))
    if requests <= batch:
        return tokens, requests * new, 1 - (1 - new) ** requests
    old = 1 - lengths.age_area(tokens, cap)
    beside = batch - 1
    return tokens, beside * old + new, 1 - (1 - old) ** beside * (1 - new)


def _survival_moments(tokens: FloatArray, running: FloatArray, step_s: FloatArray) -> tuple[float, float]:
    """Mean and mean square of the time whose survival at `tokens` is `running`, by trapezes."""
    rate = (step_s[1:] + step_s[:-1]) / 2 * np.diff(tokens)
    clock = np.concatenate([[0.0], np.cumsum(rate)])
    slices = (running[1:] + running[:-1]) / 2 * rate
    return float(slices.sum()), float(np.sum(slices * (clock[1:] + clock[:-1])))


def first_place_time(state: SteadyState, *, running: float, parked: int = 0) -> Normal:
    """Time until an instance can start something new, seconds: nothing while a place is free.

    Ends come 1 / request_s a second and are spread about exponentially. Evicted requests that are
    parked go first.
    """
    waits = max(0.0, parked - max(0.0, state.batch - running)) + (1.0 if running >= state.batch else 0.0)
    return Normal(waits * state.request_s, waits * state.request_s**2)

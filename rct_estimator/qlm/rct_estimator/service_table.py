"""How long each class of requests takes on each kind of instance, as arrays."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.length_predictive import FloatArray, LengthPredictive
from qlm.rct_estimator.throughput import SteadyState
from qlm.rct_estimator.waiting_time import emptying_time

POINTS = 8
"""Values that stand for the distribution of a request's service time."""

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassOnKind:
    """One class on one kind of instance.

    Attributes:
        state: The steady state there.
        lengths: Output lengths of the class.
        cap: Its output limit, tokens.
    """

    state: SteadyState
    lengths: LengthPredictive
    cap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapTimes:
    """What a model's changes cost on one kind, seconds."""

    warm_s: float
    cold_s: float
    unload_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServiceTable:
    """Times on the axes (classes, kinds), float64; infinite `request_s` where a kind cannot serve a class.

    Attributes:
        model: Index of each class's model, shape (classes,).
        request_s: mu / Theta.
        prompt_s: The part of it that prefills take.
        fill_s: What an empty batch saves.
        batch: Requests in the full batch.
        cv2: Squared coefficient of variation of the output length.
        mean_doubt: Relative standard deviation of the class's mean length.
        alone: Iteration of a single request over that of the full batch, dimensionless.
        response_s: Equally likely times from a place to the moment of the objective, last axis POINTS.
        tails: From the last request's place to the longest one's end, more work following: mean and
            variance for a single request and for a full batch, last axes (2, 2).
        emptyings: Likewise with nothing following.
        warm_s: Loading a model from host memory, on the axes (models, kinds).
        cold_s: From storage.
        unload_s: Unloading it; 0 in all three where nothing is known.
    """

    model: IntArray
    request_s: FloatArray
    prompt_s: FloatArray
    fill_s: FloatArray
    batch: FloatArray
    cv2: FloatArray
    mean_doubt: FloatArray
    alone: FloatArray
    response_s: FloatArray
    tails: FloatArray
    emptyings: FloatArray
    warm_s: FloatArray
    cold_s: FloatArray
    unload_s: FloatArray

    def tail(self, cls: IntArray, kind: IntArray, requests: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the tail for groups of so many requests; see `_between`."""
        return _between(self.tails[cls, kind], self.batch[cls, kind], requests)

    def emptying(self, cls: IntArray, kind: IntArray, requests: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Likewise for the end of a batch."""
        return _between(self.emptyings[cls, kind], self.batch[cls, kind], requests)


def service_table(
    models: Sequence[int],
    first_token: Sequence[bool],
    entries: Mapping[tuple[int, int], ClassOnKind],
    swaps: Mapping[tuple[int, int], SwapTimes],
    *,
    kinds: int,
) -> ServiceTable:
    """Work out the table.

    Args:
        models: Index of each class's model.
        first_token: Whether the objective of each class is about the first token.
        entries: By (class, kind); what is missing cannot run there.
        swaps: By (model, kind); what is missing cannot run there.
        kinds: Kinds of instances.

    Raises:
        InvalidValueError: A class can run where the swap times of its model are missing.
    """
    shape = (len(models), kinds)
    plain = {name: np.zeros(shape) for name in ("prompt_s", "fill_s", "batch", "cv2", "mean_doubt", "alone")}
    request_s = np.full(shape, np.inf)
    response_s = np.zeros((*shape, POINTS))
    tails, emptyings = np.zeros((*shape, 2, 2)), np.zeros((*shape, 2, 2))
    for (cls, kind), entry in entries.items():
        state, output = entry.state, entry.state.workload.output
        at = (cls, kind)
        request_s[at] = state.request_s
        plain["prompt_s"][at] = state.prompt_s
        plain["fill_s"][at] = state.fill_s
        plain["batch"][at] = state.batch
        plain["cv2"][at] = output.var / output.mean**2
        plain["mean_doubt"][at] = math.sqrt(state.workload.mean_doubt) / output.mean
        plain["alone"][at] = state.alone_s / state.iteration_s
        response_s[at] = _response_s(entry, first_token=first_token[cls])
        tails[at], emptyings[at] = _ends(entry, followed=True), _ends(entry, followed=False)
    for cls, kind in entries:
        if (models[cls], kind) not in swaps:
            raise InvalidValueError("swaps", sorted(swaps), f"one of model {models[cls]} on kind {kind}, too")
    times = np.zeros((3, 1 + max([*models, *(model for model, _ in swaps)], default=-1), kinds))
    for (model, kind), swap in swaps.items():
        times[:, model, kind] = swap.warm_s, swap.cold_s, swap.unload_s
    return ServiceTable(
        model=np.asarray(models, dtype=np.int64),
        request_s=request_s,
        **plain,
        response_s=response_s,
        tails=tails,
        emptyings=emptyings,
        warm_s=times[0],
        cold_s=times[1],
        unload_s=times[2],
    )


def _response_s(entry: ClassOnKind, *, first_token: bool) -> FloatArray:
    if first_token:
        return np.full(POINTS, entry.state.prefill_s)
    steps = np.maximum(entry.lengths.strata(POINTS, entry.cap) - 1, 0.0)
    return np.asarray(entry.state.prefill_s + steps * entry.state.iteration_s, dtype=np.float64)


def _ends(entry: ClassOnKind, *, followed: bool) -> list[list[float]]:
    ends = [
        emptying_time(entry.state, entry.lengths, requests=n, cap=entry.cap, followed=followed)
        for n in (1.0, math.inf)
    ]
    return [[end.mean, end.var] for end in ends]


def _between(ends: FloatArray, batch: FloatArray, requests: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Interpolate in log n between one request and a full batch: so does the largest of n grow."""
    full = np.log(np.maximum(batch, 1.001))
    share = np.clip(np.log(np.maximum(requests, 1.0)) / full, 0.0, 1.0)[:, None]
    both = ends[:, 0] + share * (ends[:, 1] - ends[:, 0])
    return both[:, 0], both[:, 1]

"""How long each class of requests takes on each kind of instance, as arrays."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.length_predictive import FloatArray, LengthPredictive
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.throughput import SteadyState
from qlm.rct_estimator.waiting_time import emptying_times

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassTimes:
    """One class on one kind of instance as numbers: what a `ServiceTable` says of the two.

    The attributes are those of the table.
    """

    request_s: float
    prompt_s: float
    fill_s: float
    piling_share: float
    piling_s: float
    young_share: float
    settling_s: float
    batch: float
    cv2: float
    prompt_cv2: float
    mean_doubt: float
    alone: float
    response_s: FloatArray
    tails: FloatArray
    emptyings: FloatArray

    def emptying(self, requests: float) -> Normal:
        """Time that the batch runs on after the last of so many requests; see `ServiceTable.emptying`."""
        mean, var = _between(self.emptyings[None], np.array([self.batch]), np.array([requests]))
        return Normal(float(mean[0]), float(var[0]))


_TIMES: Final = tuple(f.name for f in fields(ClassTimes))


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
        piling_share: By what share its first ends come faster (`SteadyState.piling_share`).
        piling_s: Time constant with which that wears off.
        young_share: By what share it decodes faster at first (`SteadyState.young_share`).
        settling_s: Time constant with which that wears off.
        batch: Requests in the full batch.
        cv2: Squared coefficient of variation of what decodes cost (`SteadyState.work_cv2`).
        prompt_cv2: Likewise of the prompt.
        mean_doubt: Relative standard deviation of the class's mean cost (`SteadyState.work_doubt`).
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
    piling_share: FloatArray
    piling_s: FloatArray
    young_share: FloatArray
    settling_s: FloatArray
    batch: FloatArray
    cv2: FloatArray
    prompt_cv2: FloatArray
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


def class_times(entry: ClassOnKind, *, first_token: bool) -> ClassTimes:
    """Work out how long a class takes on a kind; about half a millisecond.

    Args:
        entry: The two.
        first_token: Whether the objective of the class is about the first token.
    """
    state = entry.state
    tails, emptyings = _ends(entry)
    return ClassTimes(
        request_s=state.request_s,
        prompt_s=state.prompt_s,
        fill_s=state.fill_s,
        piling_share=state.piling_share,
        piling_s=state.piling_s,
        young_share=state.young_share,
        settling_s=state.settling_s,
        batch=state.batch,
        cv2=state.work_cv2,
        prompt_cv2=state.prompt_cv2,
        mean_doubt=state.work_doubt,
        alone=state.alone_s / state.iteration_s,
        response_s=response_s(entry, first_token=first_token),
        tails=tails,
        emptyings=emptyings,
    )


def service_table(
    models: Sequence[int],
    times: Mapping[tuple[int, int], ClassTimes],
    swaps: Mapping[tuple[int, int], SwapTimes],
    *,
    kinds: int,
) -> ServiceTable:
    """Put the table together.

    Args:
        models: Index of each class's model.
        times: By (class, kind); what is missing cannot run there.
        swaps: By (model, kind); what is missing cannot run there.
        kinds: Kinds of instances.

    Raises:
        InvalidValueError: A class can run where the swap times of its model are missing.
    """
    for cls, kind in times:
        if (models[cls], kind) not in swaps:
            raise InvalidValueError("swaps", sorted(swaps), f"one of model {models[cls]} on kind {kind}, too")
    at = tuple(np.array(list(times), dtype=np.int64).reshape(-1, 2).T)
    arrays: dict[str, FloatArray] = {}
    for name in _TIMES:
        ends = {"response_s": (POINTS,), "tails": (2, 2), "emptyings": (2, 2)}.get(name, ())
        arrays[name] = np.full((len(models), kinds, *ends), np.inf if name == "request_s" else 0.0)
        if times:
            arrays[name][at] = [getattr(each, name) for each in times.values()]
    loads = np.zeros((3, 1 + max([*models, *(model for model, _ in swaps)], default=-1), kinds))
    for (model, kind), swap in swaps.items():
        loads[:, model, kind] = swap.warm_s, swap.cold_s, swap.unload_s
    return ServiceTable(
        model=np.asarray(models, dtype=np.int64),
        **arrays,
        warm_s=loads[0],
        cold_s=loads[1],
        unload_s=loads[2],
    )


def response_s(entry: ClassOnKind, *, first_token: bool) -> FloatArray:
    """Equally likely times from a place to the first token, or to the end; (POINTS,), seconds."""
    if first_token:
        return np.full(POINTS, entry.state.prefill_s)
    steps = np.maximum(entry.lengths.strata(POINTS, entry.cap) - 1, 0.0)
    return np.asarray(entry.state.prefill_s + steps * entry.state.iteration_s, dtype=np.float64)


def _ends(entry: ClassOnKind) -> FloatArray:
    """Tails and emptyings: mean and variance for one request and for many; shape (2, 2, 2), seconds."""
    ends = [emptying_times(entry.state, entry.lengths, requests=n, cap=entry.cap) for n in (1.0, math.inf)]
    return np.array([[[end.mean, end.var] for end in each] for each in zip(*ends, strict=True)])


def _between(ends: FloatArray, batch: FloatArray, requests: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Interpolate in log n between one request and a full batch: so does the largest of n grow."""
    full = np.log(np.maximum(batch, 1.001))
    share = np.clip(np.log(np.maximum(requests, 1.0)) / full, 0.0, 1.0)[:, None]
    both = ends[:, 0] + share * (ends[:, 1] - ends[:, 0])
    return both[:, 0], both[:, 1]

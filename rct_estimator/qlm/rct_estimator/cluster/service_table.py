"""Service times of each class of requests on each kind of instance, as arrays."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.length_predictive import FloatArray, LengthPredictive
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.readers import time_behind_s
from qlm.rct_estimator.throughput import SteadyState
from qlm.rct_estimator.waiting_time import emptying_times

POINTS = 8
"""Equally likely values that stand for the distribution of a service time."""

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassOnKind:
    """One class on one kind of instance.

    Attributes:
        state: Steady state of the instance with the class.
        lengths: Output lengths of the class.
        cap: Output limit, tokens.
        tokens_per_s: Pace of its readers; None if their objective counts up to the first token only.
    """

    state: SteadyState
    lengths: LengthPredictive
    cap: float
    tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassTimes:
    """One entry of a `ServiceTable`, with the same attributes."""

    request_s: float
    prompt_s: float
    fill_s: float
    residual_transient_share: float
    residual_transient_s: float
    age_transient_share: float
    age_transient_s: float
    batch: float
    cv2: float
    prompt_cv2: float
    work_uncertainty: float
    alone_step_ratio: float
    response_s: FloatArray
    tails: FloatArray
    emptyings: FloatArray

    def emptying(self, requests: float) -> Normal:
        """Return the time to empty the batch after the last of that many requests started."""
        mean, var = _between(self.emptyings[None], np.array([self.batch]), np.array([requests]))
        return Normal(float(mean[0]), float(var[0]))


_TIMES: Final = tuple(f.name for f in fields(ClassTimes))


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapTimes:
    """Swap times of one model on one kind of instance, seconds."""

    warm_s: float
    cold_s: float
    unload_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServiceTable:
    """Times on the axes (classes, kinds), float64; infinite `request_s` where a kind cannot serve a class.

    Attributes:
        model: Index of each class's model, shape (classes,).
        request_s: Time between the ends of two requests in a full batch: mu / Theta, mean output length over
            token throughput (docs/notation.md).
        prompt_s: Part of `request_s` for prefill.
        fill_s: Time by which a request starts sooner in an initially empty batch, seconds
            (`SteadyState.fill_s`).
        residual_transient_share, residual_transient_s: Relative speed-up of the first ends of a batch that
            started empty, and its time constant, seconds (`SteadyState`).
        age_transient_share, age_transient_s: Relative speed-up of decodes while the requests of a new batch
            have no output yet, and its time constant, seconds (`SteadyState`).
        batch: Requests in the full batch.
        cv2: Squared coefficient of variation of the decode cost (`SteadyState.work_cv2`).
        prompt_cv2: Squared coefficient of variation of the prompt.
        work_uncertainty: Relative standard deviation of the estimated mean decode cost of the class.
        alone_step_ratio: Iteration time of a batch of one over that of the full batch, dimensionless.
        response_s: Equally likely times from a batch slot to what the SLO measures, last axis POINTS.
        tails: Time from the last request's start until all running requests have ended, while more work
            follows. Last axes (2, 2): a single request, a full batch; mean, variance.
        emptyings: Time for the batch to empty when nothing follows: from the same start, on the same axes.
        warm_s: Time to load a model from host memory, on the axes (models, kinds); 0 where unknown.
        cold_s: Time to load a model from storage, on the same axes; 0 where unknown.
        unload_s: Time to unload a model, on the same axes; 0 where unknown.
    """

    model: IntArray
    request_s: FloatArray
    prompt_s: FloatArray
    fill_s: FloatArray
    residual_transient_share: FloatArray
    residual_transient_s: FloatArray
    age_transient_share: FloatArray
    age_transient_s: FloatArray
    batch: FloatArray
    cv2: FloatArray
    prompt_cv2: FloatArray
    work_uncertainty: FloatArray
    alone_step_ratio: FloatArray
    response_s: FloatArray
    tails: FloatArray
    emptyings: FloatArray
    warm_s: FloatArray
    cold_s: FloatArray
    unload_s: FloatArray

    def tail(self, cls: IntArray, kind: IntArray, requests: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of the tails of groups of that many requests; see `_between`."""
        return _between(self.tails[cls, kind], self.batch[cls, kind], requests)

    def emptying(self, cls: IntArray, kind: IntArray, requests: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of the time to empty the batch; see `_between`."""
        return _between(self.emptyings[cls, kind], self.batch[cls, kind], requests)


def class_times(entry: ClassOnKind, *, first_token: bool) -> ClassTimes:
    """Return the entry of a class on a kind; takes about half a millisecond.

    Args:
        entry: The class on the kind.
        first_token: The SLO of the class is a TTFT.
    """
    state = entry.state
    tails, emptyings = _ends(entry)
    return ClassTimes(
        request_s=state.request_s,
        prompt_s=state.prompt_s,
        fill_s=state.fill_s,
        residual_transient_share=state.residual_transient_share,
        residual_transient_s=state.residual_transient_s,
        age_transient_share=state.age_transient_share,
        age_transient_s=state.age_transient_s,
        batch=state.batch,
        cv2=state.work_cv2,
        prompt_cv2=state.prompt_cv2,
        work_uncertainty=state.work_uncertainty,
        alone_step_ratio=state.alone_s / state.iteration_s,
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
    """Build the table.

    Args:
        models: Index of each class's model.
        times: Entries by (class, kind); a class without an entry cannot run on that kind.
        swaps: Swap times by (model, kind); a model without an entry cannot run on that kind.
        kinds: Kinds of instances.

    Raises:
        InvalidValueError: A class can run where the swap times of its model are missing.
    """
    for cls, kind in times:
        if (models[cls], kind) not in swaps:
            raise InvalidValueError("swaps", sorted(swaps), f"also one of model {models[cls]} on kind {kind}")
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
    """Return equally likely times from a batch slot to what an SLO measures; shape (POINTS,), seconds.

    That is the end, or the first token. Where readers follow it, their later tokens count too: the time is
    that of the first token, later by as much as the answer falls behind its reader.
    """
    if first_token and entry.tokens_per_s is None:
        return np.full(POINTS, entry.state.prefill_s)
    steps = np.maximum(entry.lengths.strata(POINTS, entry.cap) - 1, 0.0)
    if first_token:
        return entry.state.prefill_s + time_behind_s(steps, entry.state.iteration_s, entry.tokens_per_s)
    return np.asarray(entry.state.prefill_s + steps * entry.state.iteration_s, dtype=np.float64)


def _ends(entry: ClassOnKind) -> FloatArray:
    """Return tails and emptyings: mean and variance for one request and for many; shape (2, 2, 2)."""
    ends = [emptying_times(entry.state, entry.lengths, requests=n, cap=entry.cap) for n in (1.0, math.inf)]
    return np.array([[[end.mean, end.var] for end in each] for each in zip(*ends, strict=True)])


def _between(ends: FloatArray, batch: FloatArray, requests: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Interpolate in log n between one request and a full batch, as the maximum of n lengths grows."""
    full = np.log(np.maximum(batch, 1.001))
    share = np.clip(np.log(np.maximum(requests, 1.0)) / full, 0.0, 1.0)[:, None]
    both = ends[:, 0] + share * (ends[:, 1] - ends[:, 0])
    return both[:, 0], both[:, 1]

"""Continuous batching reduced to its places: whoever waits longest takes the next one that is free."""

import math

import numpy as np

from qlm.rct_estimator.length_predictive import FloatArray, LengthPredictive
from qlm.rct_estimator.output_length import observe_all, typical_prior
from qlm.rct_estimator.throughput import SteadyState
from qlm.rct_estimator.workload import class_workload

STEP_S = 0.03
CAP = 1024.0


def serve(lengths: FloatArray, places: int) -> tuple[FloatArray, FloatArray]:
    """Return when each request of each run starts and ends, for lengths of shape (runs, requests)."""
    runs, requests = lengths.shape
    free_s = np.zeros((runs, places))
    start_s = np.empty((runs, requests))
    every = np.arange(runs)
    for i in range(requests):
        place = free_s.argmin(axis=1)
        start_s[:, i] = free_s[every, place]
        free_s[every, place] += lengths[:, i] * STEP_S
    return start_s, start_s + lengths * STEP_S


def draw(rng: np.random.Generator, *shape: int, log_sd: float = 0.8, median: float = 150) -> FloatArray:
    """Log-normal lengths, in tokens, cut off at CAP."""
    tokens = rng.lognormal(math.log(median), log_sd, shape).round()
    return np.minimum(np.maximum(tokens, 1.0), CAP)


def known(lengths: FloatArray) -> LengthPredictive:
    """The posterior after these, complete."""
    return observe_all(typical_prior(CAP), lengths, np.zeros(len(lengths), dtype=bool)).predictive()


def state_of(lengths: LengthPredictive, places: int) -> SteadyState:
    """An engine of so many places whose iterations take STEP_S whatever they compute."""
    workload = class_workload(lengths, 0.0, CAP)
    return SteadyState(
        workload=workload,
        batch=places,
        request_s=workload.output.mean * STEP_S / places,
        iteration_s=STEP_S,
        decode_s=STEP_S,
        alone_s=STEP_S,
        prefill_s=STEP_S,
    )

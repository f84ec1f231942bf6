"""Continuous batching reduced to its batch slots: the longest waiting request takes the next free one."""

import math

import numpy as np

from qlm.rct_estimator.length_predictive import FloatArray, LengthPredictive
from qlm.rct_estimator.output_length import observe_all, typical_prior
from qlm.rct_estimator.throughput import SteadyState
from qlm.rct_estimator.workload import class_workload

STEP_S = 0.03
CAP = 1024.0
WAITING_R2 = 0.99
"""Coefficient of determination of waiting time against queue position; QLM, section 2.4, figure 3."""


def serve(lengths: FloatArray, slots: int) -> tuple[FloatArray, FloatArray]:
    """Return when each request of each run starts and ends, for lengths of shape (runs, requests)."""
    runs, requests = lengths.shape
    free_s = np.zeros((runs, slots))
    start_s = np.empty((runs, requests))
    every = np.arange(runs)
    for i in range(requests):
        slot = free_s.argmin(axis=1)
        start_s[:, i] = free_s[every, slot]
        free_s[every, slot] += lengths[:, i] * STEP_S
    return start_s, start_s + lengths * STEP_S


def draw(rng: np.random.Generator, *shape: int, log_sd: float = 0.8, median: float = 150) -> FloatArray:
    """Return log-normal lengths, tokens, cut off at CAP."""
    tokens = rng.lognormal(math.log(median), log_sd, shape).round()
    return np.minimum(np.maximum(tokens, 1.0), CAP)


def known(lengths: FloatArray) -> LengthPredictive:
    """Return the posterior after these complete answers."""
    return observe_all(typical_prior(CAP), lengths, np.zeros(len(lengths), dtype=bool)).predictive()


def state_of(lengths: LengthPredictive, slots: int) -> SteadyState:
    """Return an engine with that many slots whose iterations always take STEP_S."""
    workload = class_workload(lengths, 0.0, CAP)
    return SteadyState(
        workload=workload,
        batch=slots,
        request_s=workload.output.mean * STEP_S / slots,
        iteration_s=STEP_S,
        decode_s=STEP_S,
        alone_s=STEP_S,
        prefill_s=STEP_S,
    )

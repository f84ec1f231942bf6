"""A cluster as arrays: instances, groups and expected arrivals."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qlm.rct_estimator.length_predictive import FloatArray

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instances:
    """The fleet, shape (instances,) each.

    Attributes:
        kind: Index on the kinds axis of the `ServiceTable`.
        loaded: Index of the awake model, -1 for none.
        warm: Models in host memory, shape (instances, models).
        busy_s: Mean time until anything can start.
        busy_var: Variance of that time, seconds squared.
        free: Batch slots free for the loaded model; `inf` for an idle instance.
        speed: Factor on all times of the instance (`Correction.factor`).
        uncertainty: Relative standard deviation of that factor.
        load: Share of the full batch that future arrivals will occupy, in [0, 1].
    """

    kind: IntArray
    loaded: IntArray
    warm: BoolArray
    busy_s: FloatArray
    busy_var: FloatArray
    free: FloatArray
    speed: FloatArray
    uncertainty: FloatArray
    load: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Groups:
    """The groups, shape (groups,) each; orders and estimates refer to them by index.

    Attributes:
        cls: Index on the classes axis of the `ServiceTable`.
        requests: Waiting requests; 0 or more.
        deadline_s: Deadline of the first request, from now; `inf` for none.
        deadline_span_s: Deadline of the last request less that of the first; those between are evenly spaced.
    """

    cls: IntArray
    requests: FloatArray
    deadline_s: FloatArray
    deadline_span_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overtakers:
    """Expected arrivals by class, and the requests that they overtake.

    Attributes:
        target_s: A request of the first axis's class with deadline d is overtaken by those of the second that
            arrive within d - target_s: never for `inf`, always for `-inf`. Shape (classes, arriving).
        share: Share of each instance's full batch that they take, shape (instances, arriving).
        rate_rps: Arrivals per second, shape (instances, arriving).
        work_dispersion_s: Variance over mean of the work that arrives in a time, shape (instances, arriving).
        share_cv2: Variance of the share estimate over its square, shape (instances, arriving).
        prompt_tokens: Mean prompt of each class, shape (classes,).
        repeated: Prompt tokens that each instance computed again after preemptions, shape (instances,).
        busy_s: Busy time in which it did, shape (instances,).
    """

    target_s: FloatArray
    share: FloatArray
    rate_rps: FloatArray
    work_dispersion_s: FloatArray
    share_cv2: FloatArray
    prompt_tokens: FloatArray
    repeated: FloatArray
    busy_s: FloatArray

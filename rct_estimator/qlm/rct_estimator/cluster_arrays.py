"""A cluster as arrays: its instances and its groups."""

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
        busy_var: Its variance, seconds squared.
        free: Places free in the batch of the loaded model; `inf` for an idle instance.
        speed: Factor on all its times (`Correction.factor`).
        doubt: Relative standard deviation of that factor (`Correction.doubt`).
        load: Share of its full batch that requests yet to arrive will keep busy, in [0, 1].
    """

    kind: IntArray
    loaded: IntArray
    warm: BoolArray
    busy_s: FloatArray
    busy_var: FloatArray
    free: FloatArray
    speed: FloatArray
    doubt: FloatArray
    load: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Groups:
    """The groups, shape (groups,) each; their place here is their name in orders and estimates.

    Attributes:
        cls: Index on the classes axis of the `ServiceTable`.
        requests: Waiting requests; 0 or more.
        deadline_s: Of the first request, counted from now; `inf` for none.
        spread_s: How much later the last request's deadline is; those between are spread evenly.
    """

    cls: IntArray
    requests: FloatArray
    deadline_s: FloatArray
    spread_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overtakers:
    """Requests that are yet to arrive, by class, and whom they go before.

    Attributes:
        target_s: With the deadline d of a request of the first axis's class, those of the second that arrive
            within d - target_s go before it: never for `inf`, always for `-inf`. Shape (classes, coming).
        share: Of each instance's full batch that they take, shape (instances, coming).
        rate_rps: How many come a second, likewise.
        noise_s: Variance of the work that comes in a time, over its mean, likewise.
        doubt_var: Variance of the share, relative to its square, likewise.
        prompt_tokens: Mean prompt of each class, shape (classes,).
        repeated: Tokens of prompts that each instance computed again after evictions, shape (instances,).
        busy_s: Busy time in which it did, likewise.
    """

    target_s: FloatArray
    share: FloatArray
    rate_rps: FloatArray
    noise_s: FloatArray
    doubt_var: FloatArray
    prompt_tokens: FloatArray
    repeated: FloatArray
    busy_s: FloatArray

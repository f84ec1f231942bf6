"""Learned figures of controllers, as one stored them."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict


class HistoryOfClass(TypedDict):
    """Learned figures of a class."""

    cls: Mapping[
        str, Any
    ]  # Its `model`, `slo`, `cluster`, `priority`, `target_ms`, and `late` if it is demoted
    at_ns: int  # Last reading, nanoseconds since the epoch
    finished: int  # Requests that had ended with an answer, as the shared state counts them
    mean_prompt_tokens: float  # Mean prompt length
    var_prompt_tokens: float  # Variance of that length
    mean_max_tokens: float  # Mean output limit
    var_max_tokens: float  # Variance of that limit
    # Per length bin with any: the bin, answers that ended in it, their tokens, and answers that outlived it.
    lengths: Sequence[Sequence[float]]
    arrivals: Mapping[str, float] | None  # Counts of arrivals, weighted by age; null if none came lately


class HistoryOfInstance(TypedDict):
    """Learned speed of an instance for a model."""

    instance: str  # The instance
    model: str  # The model
    accelerator: str  # Its kind of accelerator
    at_ns: int  # Last report, nanoseconds since the epoch
    log_ratio: float  # Logarithm of its times over those of the profile
    log_var: float  # Variance of that logarithm
    observed_var: float  # Variance of one observation of it
    observed_weight: float  # Number of observations behind that variance


class HistoryOfForecasts(TypedDict):
    """Counts of what forecasts of groups were wrong by."""

    # Rows of the kind of wait, horizon, bin of the logarithm of actual over forecast, and weight.
    waits: Sequence[Sequence[float]]  # Of the time until the last request has left the queue
    ends: Sequence[Sequence[float]]  # Of the time until the last request has ended


class StoredHistory(TypedDict):
    """Learned figures of the controllers, as one stored them."""

    version: int  # Version of this format
    at_ns: int  # Time at which it was stored, nanoseconds since the epoch
    classes: Sequence[HistoryOfClass]  # Classes seen lately, 1000 at most
    speeds: Sequence[HistoryOfInstance]  # Instances, by model
    forecast_errors: NotRequired[HistoryOfForecasts]  # What came of forecasts; former releases have none

"""The forecast for new requests."""

from collections.abc import Sequence
from typing import TypedDict


class Normal(TypedDict):
    """A time with its uncertainty: a normal distribution."""

    mean: float  # Seconds
    var: float  # Variance, square seconds


class Drain(TypedDict):
    """Departures from the queue if nothing else arrives: a line through points."""

    after_s: Sequence[float]  # Seconds from `at_ms`
    gone: Sequence[float]  # Requests that have left by then


class ClassForecast(TypedDict):
    """The forecast for a request of a class that arrives now, in seconds from `at_ms`."""

    model: str  # The model that answers it
    slo_class: str  # Label of its objective
    cluster: str  # Its token cluster
    priority: int  # Its priority
    target_ms: float | None  # The objective that the label stands for; null for batch
    waiting: int  # Requests of the class that wait
    instance: str  # The instance that would finish it first
    wait_s: Normal  # Until it leaves the queue
    first_token_s: Normal  # Until its first token
    completion_s: Normal  # Until its end
    alone_first_token_s: Normal  # From its start to its first token, on an idle instance with the model awake
    alone_completion_s: Normal  # From its start to its end, on an idle instance with the model awake
    token_s: float  # Time per output token
    each_s: float  # Additional wait for each further request of the model before it
    drain: Drain  # Departures of the waiting requests of the class


class Forecast(TypedDict):
    """The forecast for requests that arrive now."""

    version: int  # Version of this format
    at_ms: int  # Time at which it was made, milliseconds since the epoch
    drain: Drain  # Departures of all waiting requests
    classes: Sequence[ClassForecast]  # The classes with most waiting requests, 100 at most

"""The forecast for requests that arrive."""

from collections.abc import Sequence
from typing import TypedDict


class Normal(TypedDict):
    """A time that is not certain.

    Attributes:
        mean: Seconds.
        var: Variance, square seconds.
    """

    mean: float
    var: float


class Drain(TypedDict):
    """How what waits leaves the queue, were nothing to come: a line through points.

    Attributes:
        after_s: Seconds from `at_ms`.
        gone: Requests that have left by then.
    """

    after_s: Sequence[float]
    gone: Sequence[float]


class ClassForecast(TypedDict):
    """What a request of a class that arrives now can expect, in seconds from `at_ms`.

    Attributes:
        model: The model that answers it.
        slo_class: Label of its objective.
        cluster: Its token cluster.
        priority: Its priority.
        target_ms: The objective that the label stands for; null for batch.
        waiting: Requests of the class that wait.
        instance: The instance that would end it first.
        wait_s: Until it leaves the queue.
        first_token_s: Until its first token.
        completion_s: Until its end.
        alone_first_token_s: From its start to its first token, on an idle instance with the model awake.
        alone_completion_s: Likewise to its end.
        token_s: Time per output token.
        each_s: By how much each further request of the model ahead makes it wait longer.
        drain: How the waiting requests of the class leave the queue.
    """

    model: str
    slo_class: str
    cluster: str
    priority: int
    target_ms: float | None
    waiting: int
    instance: str
    wait_s: Normal
    first_token_s: Normal
    completion_s: Normal
    alone_first_token_s: Normal
    alone_completion_s: Normal
    token_s: float
    each_s: float
    drain: Drain


class Forecast(TypedDict):
    """What can be expected of requests that arrive now.

    Attributes:
        version: Of this form.
        at_ms: When it was made, milliseconds since the epoch.
        drain: How all that waits leaves the queue.
        classes: Those with most waiting requests, 100 at most.
    """

    version: int
    at_ms: int
    drain: Drain
    classes: Sequence[ClassForecast]

"""Instances, and what they did."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from qlm.domain.fleet import EngineCapacity, EngineState
from qlm.domain.operations import Operation


class OperationTold(TypedDict):
    """How often an operation was done for a model.

    Attributes:
        operation: Which.
        model: For which model.
        count: How often.
        seconds: How long that took in all.
    """

    operation: Operation
    model: str
    count: int
    seconds: float


# `class` is a word of Python's.
SwapLost = TypedDict("SwapLost", {"class": str, "count": int, "seconds": float})
SwapLost.__doc__ = """Time without a serving model.

Attributes:
    class: The class for whose groups models were swapped.
    count: How often.
    seconds: How long in all.
"""


class Operations(TypedDict):
    """What the agent of an instance did to serve, since it began.

    Attributes:
        counts: By operation and model.
        model_swaps: Swaps of models.
        swaps_thrashed: Those that brought back a model that had gone less than 60 s before.
        swap_lost: By the class that caused them.
        ended: Requests that ended here.
        observed_s: Since when this is counted, as a length of time.
    """

    counts: Sequence[OperationTold]
    model_swaps: int
    swaps_thrashed: int
    swap_lost: Sequence[SwapLost]
    ended: int
    observed_s: float


class Instance(TypedDict):
    """A live instance.

    Attributes:
        id: Its name.
        session: The life of its agent.
        accelerator: Kind of accelerator.
        models: Models it is able to serve.
        active_model: The one that is awake; null if none is.
        engines: State of the engine of each model.
        capacity: Of the awake engine; null while none is awake.
        running: Requests in its batch.
        parked: Requests that it keeps and that wait for room.
        kv_used_tokens: Tokens of KV cache in use.
        operations: What its agent did.
        draining: It takes no new work.
        error: Which engines failed and why; empty if none did.
    """

    id: str
    session: str
    accelerator: str
    models: Sequence[str]
    active_model: str | None
    engines: Mapping[str, EngineState]
    capacity: EngineCapacity | None
    running: int
    parked: int
    kv_used_tokens: int
    operations: Operations
    draining: bool
    error: str


class Unplaced(TypedDict):
    """An instance that is to run under Ray and has no place yet.

    Attributes:
        id: Its name.
        state: That it waits.
        why: For what.
    """

    id: str
    state: Literal["waiting for a place"]
    why: str


class Instances(TypedDict):
    """All instances.

    Attributes:
        instances: The live ones.
        unplaced: Those that wait for a place.
    """

    instances: Sequence[Instance]
    unplaced: Sequence[Unplaced]


class Draining(TypedDict):
    """An instance was asked to drain.

    Attributes:
        instance: Its name.
        status: What it does.
    """

    instance: str
    status: Literal["draining"]

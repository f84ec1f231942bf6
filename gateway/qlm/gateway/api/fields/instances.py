"""Instances and their operations."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from qlm.domain.fleet import EngineCapacity, EngineState
from qlm.domain.operations import Operation


class OperationCount(TypedDict):
    """Number and duration of an operation for a model."""

    operation: Operation  # The operation
    model: str  # The model
    count: int  # Number of operations
    seconds: float  # Total duration


# `class` is a keyword of Python.
SwapLost = TypedDict("SwapLost", {"class": str, "count": int, "seconds": float})
SwapLost.__doc__ = """Time without a serving model.

Attributes:
    class: The class for whose groups models were swapped.
    count: How often.
    seconds: How long in all.
"""


class Operations(TypedDict):
    """Operations of an instance's agent since its start."""

    counts: Sequence[OperationCount]  # By operation and model
    model_swaps: int  # Swaps of models
    swaps_thrashed: int  # Swaps to a model that was swapped out less than 60 s before
    swap_lost: Sequence[SwapLost]  # Time without a serving model, by the class that caused the swap
    ended: int  # Requests that ended here
    observed_s: float  # Seconds since counting began


class Instance(TypedDict):
    """A live instance."""

    id: str  # Its name
    session: str  # Identity of its agent process
    accelerator: str  # Kind of accelerator
    models: Sequence[str]  # Models it is able to serve
    active_model: str | None  # The awake model; null if none is
    engines: Mapping[str, EngineState]  # State of the engine of each model
    capacity: EngineCapacity | None  # Capacity of the awake engine; null if none is awake
    running: int  # Requests in its batch
    parked: int  # Preempted requests that wait to resume on it
    kv_used_tokens: int  # Tokens of KV cache in use
    operations: Operations  # Operations of its agent
    draining: bool  # It takes no new work
    error: str  # Which engines failed and why; empty if none did


class Unplaced(TypedDict):
    """An instance that waits for a node under Ray."""

    id: str  # Its name
    state: Literal["waiting for a place"]  # Always the same
    why: str  # What it waits for


class ConfiguredInstance(TypedDict):
    """An instance of the gateway's configuration, live or not."""

    id: str  # Its name
    accelerator: str  # Kind of accelerator
    models: Sequence[str]  # Models it shall serve
    batching: str | None  # Batch policy of its engines; null for first come, first served


class RefusedAgent(TypedDict):
    """An instance of which a second agent was started within 10 minutes, and refused."""

    id: str  # Name of the instance
    why: str  # The agent that was refused, and the one that has the instance


class Instances(TypedDict):
    """All instances."""

    instances: Sequence[Instance]  # The live ones
    configured: Sequence[ConfiguredInstance]  # Those of the configuration of this gateway
    refused_agents: Sequence[RefusedAgent]  # Second agents of instances
    unplaced: Sequence[Unplaced]  # Instances that wait for a node


class Draining(TypedDict):
    """An instance that was asked to drain."""

    instance: str  # Its name
    status: Literal["draining"]  # Always the same

"""What a simulation found: one row per submitted request, and sums."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.domain.ids import InstanceId
from qlm.domain.operations import OperationStats
from qlm.simulator.scenario import IntArray, Scenario, Workload

NEVER: Final = -1
"""In a column of times: it did not happen. In `instance`: no engine ever had it."""

REFUSED: Final = "refused"
"""Outcome of a request that was not taken in (429 or 503)."""

UNFINISHED: Final = "unfinished"
"""Outcome of a request that had not ended when the simulation did."""


@dataclass(slots=True, kw_only=True, eq=False)
class Outcomes:
    """What became of each request; shape (requests,) each, times in nanoseconds from the start.

    Attributes:
        first_token_ns: When the client had the first token.
        ended_ns: When the client had the last one.
        tokens: Output tokens it got.
        instance: Index of the last instance that ran it.
        evictions: How often it was evicted.
        outcome: How it ended.
        met: Whether its objective was met; batch work meets its own by being answered.
    """

    first_token_ns: IntArray
    ended_ns: IntArray
    tokens: IntArray
    instance: IntArray
    evictions: IntArray
    outcome: list[str]
    met: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, requests: int) -> "Outcomes":
        """Nothing has happened yet."""
        never = np.full(requests, NEVER, dtype=np.int64)
        return cls(
            first_token_ns=never.copy(),
            ended_ns=never.copy(),
            tokens=np.zeros(requests, dtype=np.int64),
            instance=never.copy(),
            evictions=np.zeros(requests, dtype=np.int64),
            outcome=[UNFINISHED] * requests,
            met=np.zeros(requests, dtype=np.bool_),
        )


@dataclass(slots=True, kw_only=True)
class Sample:
    """The cluster at one moment.

    Attributes:
        at_s: Seconds from the start.
        waiting: Waiting requests by model, in the order of `Scenario.models`.
        running: Requests in the batch, by instance.
        kv_usage: Share of KV blocks in use, by instance.
        awake: Index of the awake model by instance, `NEVER` for none.
        first_group: Id of the first group of each virtual queue, empty for none.
    """

    at_s: float
    waiting: list[int]
    running: list[int]
    kv_usage: list[float]
    awake: list[int]
    first_group: list[str]


@dataclass(slots=True, kw_only=True, eq=False)
class SimulationResult:
    """One run.

    Attributes:
        scenario: What was simulated.
        workload: Its requests.
        policy: Name of the policy.
        seed: Of all randomness.
        outcomes: One row per request.
        instances: Names, in the order of indices.
        swaps_warm: Model changes from host memory.
        swaps_reload: From storage, into a live process.
        swaps_cold: From nothing.
        swap_seconds: Time that instances spent with no engine awake because of them.
        operations: Of each life of each agent.
        moves: Groups that came to an instance from the queue of another one.
        plan_s: Real seconds of each decision of the controller.
        events: Events simulated.
        simulated_s: Virtual seconds.
        wall_s: Real seconds.
    """

    scenario: Scenario
    workload: Workload
    policy: str
    seed: int
    outcomes: Outcomes
    instances: tuple[InstanceId, ...]
    swaps_warm: int = 0
    swaps_reload: int = 0
    swaps_cold: int = 0
    swap_seconds: float = 0.0
    operations: list[OperationStats] = field(default_factory=list)
    moves: int = 0
    plan_s: list[float] = field(default_factory=list)
    events: int = 0
    simulated_s: float = 0.0
    wall_s: float = 0.0

"""Results of a simulation: one row per request of the workload, and sums."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.agents.core.stats.gpu_time import GpuTime, Interval
from qlm.domain.ids import InstanceId
from qlm.domain.operations import OperationStats
from qlm.domain.streaming.experience import qoe_star
from qlm.domain.streaming.timeline import Timeline
from qlm.simulator.scenario import IntArray, Scenario, Workload

FloatArray = npt.NDArray[np.float64]

NEVER: Final = -1
"""Missing value: of a time, it did not happen; of an instance, no engine ever had the request."""

REFUSED: Final = "refused"
"""Outcome of a request that was not accepted (429 or 503)."""

UNFINISHED: Final = "unfinished"
"""Outcome of a request that was unfinished at the end of the simulation."""


@dataclass(slots=True, kw_only=True, eq=False)
class Outcomes:
    """Outcome columns, shape (requests,) each; times in nanoseconds from the start.

    Attributes:
        arrival_ns: Arrival of the request; `NEVER` if it was due after the horizon, or is a call of a task
            that never came.
        first_token_ns: Arrival of the first token at the client.
        ended_ns: Arrival of the last token at the client.
        tokens: Output tokens received.
        instance: Index of the last instance that ran it.
        evictions: Number of preemptions by agents.
        engine_preemptions: Number of preemptions within engines: for lack of KV blocks, by sleep, by batch
            policies.
        outcome: Value of `Outcome`, `REFUSED` or `UNFINISHED`, also of what has not arrived.
        met: Whether the objective was met; best-effort requests meet theirs by being answered.
        idle_s: Time that the reader waited beyond the objective; NaN without a reader or an answer.
        stalls: Pauses of the reader after the first token.
        qoe: Quality of experience of the reader (QoE*); NaN without a reader or an answer.
    """

    arrival_ns: IntArray
    first_token_ns: IntArray
    ended_ns: IntArray
    tokens: IntArray
    instance: IntArray
    evictions: IntArray
    engine_preemptions: IntArray
    outcome: list[str]
    met: npt.NDArray[np.bool_]
    idle_s: FloatArray
    stalls: IntArray
    qoe: FloatArray

    @classmethod
    def of(cls, requests: int) -> "Outcomes":
        """Return the columns of requests that have not arrived yet."""
        never = np.full(requests, NEVER, dtype=np.int64)
        return cls(
            arrival_ns=never.copy(),
            first_token_ns=never.copy(),
            ended_ns=never.copy(),
            tokens=np.zeros(requests, dtype=np.int64),
            instance=never.copy(),
            evictions=np.zeros(requests, dtype=np.int64),
            engine_preemptions=np.zeros(requests, dtype=np.int64),
            outcome=[UNFINISHED] * requests,
            met=np.zeros(requests, dtype=np.bool_),
            idle_s=np.full(requests, np.nan),
            stalls=np.zeros(requests, dtype=np.int64),
            qoe=np.full(requests, np.nan),
        )

    def read(self, number: int, timeline: Timeline) -> None:
        """Record what the reader of a request lived through."""
        self.idle_s[number] = timeline.late_s
        self.stalls[number] = timeline.stalls
        self.qoe[number] = qoe_star(timeline)


@dataclass(slots=True, kw_only=True)
class Sample:
    """Sample of the cluster at one time.

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulationResult:
    """Result of one run.

    Attributes:
        instances: Ids in the order of their indices.
        swaps_warm: Model swaps from host memory.
        swaps_reload: Model swaps from storage into a running process.
        swaps_cold: Model swaps that start a process.
        swap_seconds: Time of instances without an awake engine because of swaps.
        prefix_hits: Prompt tokens that the engines' prefix caches held, those of resumed requests included.
        operations: Operations of each incarnation of each agent.
        gpu_times: Account of each instance's time.
        intervals: Uses of each instance's time, in order.
        moves: Moves of groups from one instance's queue to another's.
        planner_failures: Plans by earliest deadline first, or without a new placement, after a failure.
        plan_s: Wall time of each decision of the controller.
        events: Number of simulated events.
        simulated_s: Virtual seconds.
        wall_s: Wall time.
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
    prefix_hits: int = 0
    operations: list[OperationStats] = field(default_factory=list)
    gpu_times: Sequence[GpuTime] = ()
    intervals: Sequence[Sequence[Interval]] = ()
    moves: int = 0
    planner_failures: int = 0
    plan_s: list[float] = field(default_factory=list)
    events: int = 0
    simulated_s: float = 0.0
    wall_s: float = 0.0

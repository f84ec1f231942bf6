"""Policies by name: classes of requests, planner, and rules of the agents."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from qlm.controller.core.decide import Planner
from qlm.domain.group import RequestClass, request_class
from qlm.domain.ids import ModelId
from qlm.domain.slo import Slo
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.baselines.fcfs import plan_fcfs
from qlm.planner.baselines.group_greedy import plan_group_greedy
from qlm.planner.baselines.most_memory import MostMemory
from qlm.planner.baselines.priority_fcfs import plan_priority_fcfs
from qlm.planner.baselines.random_placement import plan_random
from qlm.planner.baselines.round_robin import RoundRobin
from qlm.planner.baselines.sjf import plan_sjf
from qlm.planner.extra import needs_solvers

MakePlanner = Callable[[int], Planner]
"""Makes the planner of one simulation from its seed; the planner may keep state between plans."""


def _same(planner: Planner) -> MakePlanner:
    """Wrap a planner that needs no seed and keeps no state."""
    return lambda seed: planner


def _shepherd(seed: int) -> Planner:
    """Return SHEPHERD's integer program.

    Raises:
        QlmError: Its solver is not installed.
    """
    # Imported here: the solver takes most of a second. The program has a limit of nodes, since one of time
    # would make results depend on the machine.
    with needs_solvers("policy shepherd"):
        from qlm.planner.baselines.shepherd import plan_shepherd
    return plan_shepherd


def _qlm(seed: int) -> Planner:
    """Return the plan generator, as controllers use it.

    Raises:
        QlmError: Its solver is not installed.
    """
    with needs_solvers("policy qlm"):
        from qlm.planner.policy.replanning import Replanner
    return Replanner(seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Planner and rules of the agents in a simulation.

    Attributes:
        name: Name on the command line.
        about: Description in one line.
        make_planner: Makes the planner of one simulation.
        by_arrival: Requests of a model form one class, ordered by arrival.
        by_priority: With `by_arrival`, one class per priority.
        evicts: Agents preempt running requests for more urgent ones.
        demotes: Agents demote requests that can no longer meet their deadline.
        limits_batch: Best-effort requests wait while running requests need a faster pace.
        swap_idle_s: Time after work with a deadline in which no model is swapped for deferrable work.
        visits: Agents leave a model at the latest safe moment (`agents.core.scheduling.visits`).
        late_weight: Worth of requests without a deadline to visits (`operations.late_weight`).
        places: The controller gives each instance its models for the next minutes (`planner.placement`).
        warms_ahead: Agents prefetch weights of models later in their queue into host memory.
        balances: The controller spreads the waiting requests of a class over instances.
        clusters: The controller divides classes by the length of prompts (`controller.core.clustering`).
        strands: The controller divides tasks into strands, which have homes (`controller.core.strand_homes`).
        bounds_readers: Agents take no more requests beside a reader than the batch keeps up with, and plans
            rely on it (`rct_estimator.readers`).
    """

    name: str
    about: str
    make_planner: MakePlanner
    by_arrival: bool = False
    by_priority: bool = False
    evicts: bool = False
    demotes: bool = False
    limits_batch: bool = False
    swap_idle_s: float = 0.0
    visits: bool = False
    late_weight: float = 0.2
    places: bool = False
    warms_ahead: bool = True
    balances: bool = True
    clusters: bool = False
    strands: bool = False
    bounds_readers: bool = False

    def classify(self, model: ModelId, slo: Slo, priority: int) -> RequestClass:
        """Return the class of a request."""
        if self.by_arrival:
            kept = priority if self.by_priority else 0
            return RequestClass(model=model, slo="fcfs", priority=kept, target_ms=0.0)
        return request_class(model, slo, priority)


POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            Policy(
                name="edf",
                about="earliest deadline first, groups of a model kept together",
                make_planner=_same(plan_edf),
                evicts=True,
            ),
            Policy(
                name="qlm",
                about="the plan generator: weighs deadlines, swaps and moves (as qlm serve does)",
                make_planner=_qlm,
                evicts=True,
                demotes=True,
                swap_idle_s=4.0,
                clusters=True,
                strands=True,
                bounds_readers=True,
                visits=True,
                places=True,
            ),
            Policy(
                name="fcfs",
                about="first come, first served, whatever the objective; no preemption",
                make_planner=_same(plan_fcfs),
                by_arrival=True,
            ),
            Policy(
                name="priority-fcfs",
                about="first come, first served within each priority",
                make_planner=_same(plan_priority_fcfs),
                by_arrival=True,
                by_priority=True,
            ),
            Policy(
                name="sjf",
                about="shortest predicted service time first",
                make_planner=_same(plan_sjf),
            ),
            Policy(
                name="round-robin",
                about="arrival order, each instance in turn",
                make_planner=lambda seed: RoundRobin(),
                by_arrival=True,
            ),
            Policy(
                name="most-memory",
                about="arrival order, on the instance with the most KV cache left",
                make_planner=lambda seed: MostMemory(),
                by_arrival=True,
            ),
            Policy(
                name="random",
                about="arrival order, on instances drawn at random",
                make_planner=lambda seed: partial(plan_random, seed=seed),
                by_arrival=True,
            ),
            Policy(
                name="group-greedy",
                about="the model with the most waiting requests first, all of them before the next swap",
                make_planner=_same(plan_group_greedy),
            ),
            Policy(
                name="shepherd",
                about="SHEPHERD's integer program: fixed batches, fixed times, most requests in time",
                make_planner=_shepherd,
            ),
        )
    }
)
"""All policies of `qlm simulate`."""

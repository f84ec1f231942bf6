"""Policies by name: how requests are classed, how groups are ordered, and what agents may do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from qlm.controller.protocol import Planner
from qlm.domain.group import RequestClass, request_class
from qlm.domain.ids import ModelId
from qlm.domain.slo import Slo
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.baselines.fcfs import plan_fcfs
from qlm.planner.baselines.group_greedy import plan_group_greedy
from qlm.planner.baselines.priority_fcfs import plan_priority_fcfs
from qlm.planner.baselines.random_placement import plan_random
from qlm.planner.baselines.round_robin import RoundRobin
from qlm.planner.baselines.sjf import plan_sjf
from qlm.planner.extra import needs_solvers

MakePlanner = Callable[[int], Planner]
"""Makes the planner of one simulation from its seed; it may remember what it planned before."""


def _same(planner: Planner) -> MakePlanner:
    """A planner that needs no seed and remembers nothing."""
    return lambda seed: planner


def _shepherd(seed: int) -> Planner:
    """SHEPHERD's program under its limit of nodes: a limit of time would make results depend on the machine.

    Raises:
        QlmError: Its solver is not installed.
    """
    # The solver takes most of a second to import: only who solves waits for it.
    with needs_solvers("policy shepherd"):
        from qlm.planner.baselines.shepherd import plan_shepherd
    return plan_shepherd


def _qlm(seed: int) -> Planner:
    """The plan generator as a controller uses it.

    Raises:
        QlmError: Its solver is not installed.
    """
    with needs_solvers("policy qlm"):
        from qlm.planner.policy.replanning import Replanner
    return Replanner(seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One way to serve.

    Attributes:
        name: As on the command line.
        about: One line for people.
        make_planner: Makes what orders and places groups, for one simulation.
        by_arrival: All requests of a model form one class, whose objective is their arrival.
        by_priority: With `by_arrival`: one class for each priority, too.
        evicts: Agents evict running requests for more urgent ones.
        demotes: Requests that cannot be in time any more make way for those that can.
        limits_batch: Batch work waits while requests that run need a faster pace.
        swap_idle_s: Models are not swapped for work that can wait so soon after work with a deadline.
        warms_ahead: Agents read weights files of models later in their queue into host memory.
        balances: The waiting requests of a class are spread over instances.
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
    warms_ahead: bool = True
    balances: bool = True

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
                about="the plan generator: deadlines, swaps and moves weighed (what qlm serve does)",
                make_planner=_qlm,
                evicts=True,
                demotes=True,
                swap_idle_s=4.0,
            ),
            Policy(
                name="fcfs",
                about="first come, first served, whatever was asked for; nothing is evicted",
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
                name="random",
                about="arrival order, on instances drawn at random",
                make_planner=lambda seed: partial(plan_random, seed=seed),
                by_arrival=True,
            ),
            Policy(
                name="group-greedy",
                about="the model with the most waiting requests first, all of it before the model changes",
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
"""All policies that can be simulated."""

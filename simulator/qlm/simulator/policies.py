"""Policies by name: how requests are classed, how groups are ordered, and what agents may do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from qlm.domain.group import RequestClass, request_class
from qlm.domain.ids import ModelId
from qlm.domain.slo import Slo
from qlm.planner.edf import plan_edf
from qlm.planner.fcfs import plan_fcfs
from qlm.planner.problem import Plan, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One way to serve.

    Attributes:
        name: As on the command line.
        about: One line for people.
        planner: Orders and places groups.
        by_arrival: All requests of a model form one class, whose objective is their arrival.
        evicts: Agents evict running requests for more urgent ones.
    """

    name: str
    about: str
    planner: Callable[[Problem], Plan]
    by_arrival: bool = False
    evicts: bool = True

    def classify(self, model: ModelId, slo: Slo, priority: int) -> RequestClass:
        """Return the class of a request."""
        if self.by_arrival:
            return RequestClass(model=model, slo="fcfs", target_ms=0.0)
        return request_class(model, slo, priority)


POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            Policy(
                name="edf",
                about="earliest deadline first, groups of a model kept together (what qlm serve does)",
                planner=plan_edf,
            ),
            Policy(
                name="fcfs",
                about="first come, first served, whatever was asked for; nothing is evicted",
                planner=plan_fcfs,
                by_arrival=True,
                evicts=False,
            ),
        )
    }
)
"""All policies that can be simulated."""

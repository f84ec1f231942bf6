"""The forecasts that people and admission see: corrected by how earlier ones came out."""

from collections.abc import Mapping
from dataclasses import dataclass

from qlm.agents.core.scheduling.visits.backlog import Patience
from qlm.controller.core.estimating.snapshot import Snapshot
from qlm.controller.core.expected.log import ForecastLog
from qlm.controller.core.expected.waits import ExpectedWait, expected_waits
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.problem import Plan, Problem
from qlm.rct_estimator.forecast_errors import Turn
from qlm.rct_estimator.normal import Normal


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Times of a request, seconds from now.

    Attributes:
        leaves: It leaves the queue.
        first_token: Its first token.
        ends: Its end.
    """

    leaves: Normal
    first_token: Normal
    ends: Normal


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CorrectedForecasts:
    """Forecasts of one plan.

    Attributes:
        snapshot: Origin of the plan.
        plan: The plan.
        models: Models of its groups.
        waits: Uncorrected waits of the groups.
        log: What earlier forecasts taught.
    """

    snapshot: Snapshot
    plan: Plan
    models: Mapping[GroupId, ModelId]
    waits: Mapping[GroupId, ExpectedWait]
    log: ForecastLog

    @classmethod
    def of(
        cls, snapshot: Snapshot, problem: Problem, plan: Plan, patience: Patience | None
    ) -> "CorrectedForecasts":
        """Forecast all groups of a plan."""
        waits = expected_waits(snapshot, problem, plan, patience)
        return cls(
            snapshot=snapshot,
            plan=plan,
            models={group.id: group.model for group in problem.groups},
            waits=waits,
            log=snapshot.state.forecasts.overdue(snapshot.now_ns),
        )

    def group_ends(self, id: GroupId) -> Normal | None:
        """Return when a group has ended; None if the plan has it on no queue."""
        wait = self.waits.get(id)
        return None if wait is None else self.log.ends.corrected(wait.turn, wait.ends)

    def arriving(
        self, cls: RequestClass, instance: InstanceId, planned: Normal, first_token: Normal, answer: Normal
    ) -> Expected:
        """Return the times of a request that arrives now.

        Args:
            cls: Its class.
            instance: Instance that will run it.
            planned: Time until it leaves the queue, by the plan.
            first_token: Time from there to the first token.
            answer: Time from there to the end.
        """
        turn = self._turn(instance, cls.model)
        raw = planned + Normal(self._shift_s(cls.model, instance, planned.mean))
        leaves = self.log.waits.corrected(turn, raw)
        first, ends = leaves + first_token, self.log.ends.corrected(turn, raw + answer)
        return Expected(leaves=leaves, first_token=first, ends=_not_before(first, ends))

    def _turn(self, instance: InstanceId, model: ModelId) -> Turn:
        """Return what a request waits for that arrives: nothing, where no other model has requests."""
        if self.snapshot.instances[instance].loaded != model:
            return Turn.SWAP
        others = any(self.models.get(id, model) != model for id in self.plan.queues.get(instance, ()))
        return Turn.AWAKE if others else Turn.ALONE

    def _shift_s(self, model: ModelId, instance: InstanceId, before_s: float) -> float:
        """Return by how much visits move what stands last before a time of the plan on an instance."""
        queue = (id for id in self.plan.queues.get(instance, ()) if self.models.get(id) == model)
        alike = [self.waits[id] for id in queue if self.waits[id].planned.mean <= before_s]
        return alike[-1].leaves.mean - alike[-1].planned.mean if alike else 0.0


def _not_before(first: Normal, ends: Normal) -> Normal:
    """Return an end; that of its first token where it would be earlier, as waits and ends learn apart."""
    return ends if ends.mean >= first.mean else Normal(first.mean, max(first.var, ends.var))

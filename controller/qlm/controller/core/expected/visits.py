"""The queue of an instance as its agent will serve it: model after model, in visits.

A plan orders groups, and swaps whenever the next one needs another model. With `operations.visit` an agent
decides by itself when it leaves a model (`qlm.agents.core.scheduling.visits`). Here the same decision is
applied along the queue, with its constants; nothing arrives meanwhile.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from qlm.agents.core.scheduling.visits.backlog import Backlog, HopefulRequests, Patience
from qlm.agents.core.scheduling.visits.candidate import Candidate
from qlm.agents.core.scheduling.visits.decision import DECIDE_WITHIN_S, LEAST_VISIT_SWAPS, decide
from qlm.agents.core.scheduling.visits.present import Present
from qlm.agents.core.scheduling.visits.remain import NEVER, Leave, Remain
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, ModelId
from qlm.planner.problem import Instance, Kind
from qlm.planner.swapping.swaps import Swaps

STEP_MIN_S: Final = 1.0
"""Shortest time between two decisions of a forecast."""

IDLE_STEP_MAX_S: Final = 2.0
"""Longest time between two decisions while the present model has nothing to do."""

ArrivalSlacks = Mapping[ModelId, Sequence[tuple[float, float]]]
"""Expected arrivals per second and the time that one can wait, by class of each model."""


@dataclass(slots=True, kw_only=True)
class WaitingPart:
    """What is left of a group. Times are seconds from the forecast.

    Attributes:
        left: Waiting requests.
        service_s: Time that one adds to the wait of those behind it.
        lead_s: Time from a start to what the objective is about.
        first_s: Arrival of the first, 0 or less.
        last_s: Arrival of the last.
    """

    id: GroupId
    cls: RequestClass
    left: float
    service_s: float
    lead_s: float
    first_s: float
    last_s: float

    @property
    def requests(self) -> int:
        """Waiting requests; the rest of one counts whole, or it would wait for nothing."""
        return max(1, round(self.left))

    def hopeful(self, patience: Patience, at_s: float) -> HopefulRequests | None:
        """Return its requests as the agent weighs them at a time."""
        cls, requests = self.cls, self.requests
        objective_s = None if cls.target_ms is None else cls.target_ms / 1e3
        if cls.due_ms is None:
            return HopefulRequests.deferred(
                patience,
                priority=cls.priority,
                requests=requests,
                waits_s=at_s - self.first_s,
                spread_s=self.last_s - self.first_s,
                service_s=self.service_s,
                objective_s=objective_s,
            )
        slack_s = cls.due_ms / 1e3 - self.lead_s - at_s
        return HopefulRequests.of(
            priority=cls.priority,
            requests=requests,
            first_s=self.first_s + slack_s,
            last_s=self.last_s + slack_s,
            service_s=self.service_s,
            objective_s=cls.due_ms / 1e3,
        )


class VisitWalk:
    """Serves the parts of one queue, visit after visit.

    Attributes:
        leaves_s: Time when the last request of each group leaves the queue, for those that were reached.
        now_s: Time that was reached.
    """

    def __init__(
        self,
        kind: Kind,
        instance: Instance,
        parts: Iterable[WaitingPart],
        patience: Patience,
        arrivals: ArrivalSlacks,
    ) -> None:
        self.leaves_s: dict[GroupId, float] = {}
        self._swaps = Swaps(kind)
        self._asleep = self._swaps.at_first(instance)
        self._loaded = instance.loaded_model if instance.loaded_model in kind.models else None
        self._patience, self._arrivals = patience, arrivals
        self._waiting = defaultdict[ModelId, deque[WaitingPart]](deque)
        for part in parts:
            self._waiting[part.cls.model].append(part)
        self.now_s = max(0.0, instance.busy.mean)
        self._awake_s = self._idle_s = 0.0

    def run(self, decisions_max: int) -> int:
        """Serve the groups, within a number of decisions; return how many it took."""
        for taken in range(decisions_max):
            others = self._others()
            mine = self._waiting[self._loaded] if self._loaded is not None else deque[WaitingPart]()
            if not others:
                self._serve(mine, float("inf"))
                return taken
            decision = self._decide(mine, others)
            if isinstance(decision, Leave):
                self._leave(decision.model)
            elif mine:
                self._serve(mine, self._budget_s(decision, others))
            else:
                self._pass(min(IDLE_STEP_MAX_S, decision.until_s))
        return decisions_max

    def _others(self) -> list[Candidate]:
        return [
            Candidate(
                model=model,
                backlog=self._backlog(parts),
                swap_s=self._swaps.takes_s(self._asleep, self._loaded, model),
                waiting=sum(part.requests for part in parts),
                priority=min(part.cls.priority for part in parts),
            )
            for model, parts in self._waiting.items()
            if parts and model != self._loaded
        ]

    def _backlog(self, parts: Iterable[WaitingPart]) -> Backlog:
        hopeful = (part.hopeful(self._patience, self.now_s) for part in parts)
        return Backlog(each for each in hopeful if each is not None)

    def _decide(self, mine: Sequence[WaitingPart], others: Sequence[Candidate]) -> Remain | Leave:
        if self._loaded is None:
            return Leave(model=min(others, key=lambda each: each.leave_at_s).model, why="none is awake")
        present = Present(
            backlog=self._backlog(mine),
            back_s=self._back_s(others[0].model),
            awake_s=self._awake_s,
            idle_s=self._idle_s,
            service_s=mine[0].service_s if mine else 0.0,
            arrivals=self._arrivals.get(self._loaded, ()),
            priority=min((part.cls.priority for part in mine), default=None),
        )
        return decide(present, others)

    def _back_s(self, away: ModelId) -> float:
        assert self._loaded is not None
        asleep = self._swaps.after(self._asleep, self._loaded, away)
        return self._swaps.takes_s(asleep, away, self._loaded)

    def _budget_s(self, decision: Remain, others: Sequence[Candidate]) -> float:
        """Return the time until the next decision about a model with work."""
        if decision is NEVER:
            return LEAST_VISIT_SWAPS * self._back_s(others[0].model) - self._awake_s
        return decision.until_s - DECIDE_WITHIN_S + STEP_MIN_S / 2

    def _serve(self, mine: deque[WaitingPart], budget_s: float) -> None:
        budget_s, self._idle_s = max(STEP_MIN_S, budget_s), 0.0
        while mine and budget_s > 0:
            part = mine[0]
            takes_s = min(budget_s, part.left * part.service_s)
            whole = takes_s < budget_s or budget_s == float("inf")
            self.now_s, self._awake_s = self.now_s + takes_s, self._awake_s + takes_s
            if not whole:
                part.left -= takes_s / part.service_s
                return
            budget_s -= takes_s
            self.leaves_s[part.id] = self.now_s
            mine.popleft()

    def _pass(self, idle_s: float) -> None:
        idle_s = max(STEP_MIN_S, idle_s)
        self.now_s, self._awake_s, self._idle_s = (
            self.now_s + idle_s,
            self._awake_s + idle_s,
            self._idle_s + idle_s,
        )

    def _leave(self, model: ModelId) -> None:
        self.now_s += self._swaps.takes_s(self._asleep, self._loaded, model)
        self._asleep = self._swaps.after(self._asleep, self._loaded, model)
        self._loaded, self._awake_s, self._idle_s = model, 0.0, 0.0

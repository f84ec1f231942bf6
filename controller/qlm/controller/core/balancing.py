"""Load balance: distribution of the waiting and the next requests of a class over the instances.

One instance serves a group, and new arrivals join the newest group of their class at once. So that no request
waits while another instance has free batch slots:

* the open group moves to the instance where the next request would wait least;
* it keeps no more requests than the fair share of its instance;
* requests split off form a new group for each instance that is to serve some.

Under overload all instances have about equal work and groups fill up, so nothing changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from qlm.agents.core.queue_head import SWAPS_THERE_AND_BACK
from qlm.controller.core.estimating.service_times import ServiceTimes
from qlm.controller.core.fleet import Fleet
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import InstanceId
from qlm.domain.urgency import class_urgency
from qlm.domain.view import ClassView, ClusterView

UNEVEN_SHARE: Final = 0.25
"""Tolerated imbalance, as a share of the work of the less loaded instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceTarget:
    """Changes that load balance asks of the groups of one class.

    Attributes:
        keep_max: Waiting requests that the open group keeps at most; the rest is split off. None for all.
        shares: Instances for requests without a group, with their numbers; empty for any instance.
        placement: Instance of the open group while it is empty; None for its present one.
        seal: Seal the open group if it has waiting requests: the next arrivals start sooner elsewhere.
    """

    keep_max: int | None = None
    shares: tuple[tuple[InstanceId, int], ...] = ()
    placement: InstanceId | None = None
    seal: bool = False


BALANCED: Final = BalanceTarget()
"""No change."""


@dataclass(frozen=True, slots=True)
class _Lane:
    """One instance from the point of view of a class.

    Attributes:
        work_s: Seconds of work before a new request, a model swap included.
        request_s: Seconds that one more request adds.
        swap_s: The part of `work_s` for the model swap; 0 for none.
    """

    instance: InstanceId
    work_s: float
    request_s: float
    swap_s: float = 0.0


class LoadBalance:
    """Work of each instance from leases, virtual queues and the requests assigned during this regrouping."""

    def __init__(self, view: ClusterView, times: ServiceTimes, fleet: Fleet) -> None:
        self._view = view
        self._times = times
        self._fleet = fleet
        self._queues = {queue.instance: list(queue.groups) for queue in view.queues}
        self._instance_of = {group.id: id for id, groups in self._queues.items() for group in groups}
        self._claims: dict[InstanceId, float] = {}
        self._able = [each for each in view.instances if not each.draining]
        self._of_model = {(cls.model, kind): entry for (cls, kind), entry in times.entries.items()}

    def target(self, view: ClassView) -> BalanceTarget:
        """Return the balance of a class, and count its requests as work of the chosen instances."""
        opened = view.groups[-1] if view.groups and not view.groups[-1].sealed else None
        waiting = opened.remaining if opened else 0
        ungrouped = view.queued - sum(group.remaining for group in view.groups)
        lanes = self._lanes(view.cls, opened, waiting + max(0, ungrouped))
        if not lanes:
            return BALANCED
        present = self._instance_of.get(opened.id) if opened else None
        at = next((lane for lane in lanes if opened and lane.instance == present), None)
        backlog_s = {lane: lane.work_s + (waiting * lane.request_s if lane is at else 0.0) for lane in lanes}
        best = min(lanes, key=lambda lane: (backlog_s[lane], lane.instance))
        self._claims[best.instance] = self._claims.get(best.instance, 0.0) + best.request_s
        if at is None:
            shares = self._shares(lanes, waiting + max(0, ungrouped))
            return BalanceTarget(shares=shares, placement=best.instance)
        uneven_s = max(at.request_s, UNEVEN_SHARE * backlog_s[best])
        if best is at or backlog_s[at] - backlog_s[best] <= uneven_s:
            return BalanceTarget(shares=self._shares(lanes, max(0, ungrouped)), placement=at.instance)
        level_s = _level_s(lanes, waiting + max(0, ungrouped))
        keep = min(waiting, max(0, round((level_s - at.work_s) / at.request_s)))
        cut = waiting - keep + max(0, ungrouped)
        kept = replace(at, work_s=at.work_s + keep * at.request_s)
        after = [kept if lane is at else lane for lane in lanes]
        shares = self._shares(after, cut)
        return BalanceTarget(keep_max=keep, shares=shares, placement=best.instance, seal=True)

    def _shares(self, lanes: Sequence[_Lane], requests: int) -> tuple[tuple[InstanceId, int], ...]:
        """Distribute requests over the lanes, the least loaded first, and count them as work there."""
        if not requests or not lanes:
            return ()
        level_s = _level_s(lanes, requests)
        exact = {lane: max(0.0, (level_s - lane.work_s) / lane.request_s) for lane in lanes}
        shares = {lane: int(count) for lane, count in exact.items()}
        short = requests - sum(shares.values())
        for lane in sorted(exact, key=lambda lane: (shares[lane] - exact[lane], lane.instance))[:short]:
            shares[lane] += 1
        taking = sorted((lane for lane in lanes if shares[lane]), key=lambda x: (x.work_s, x.instance))
        for lane in taking:
            claimed_s = shares[lane] * lane.request_s
            self._claims[lane.instance] = self._claims.get(lane.instance, 0.0) + claimed_s
        return tuple((lane.instance, shares[lane]) for lane in taking)

    def _lanes(self, cls: RequestClass, opened: Group | None, requests: int) -> list[_Lane]:
        """Return the instances that may share requests of a class; none leaves the choice to the plan.

        The work excludes the waiting requests of the open group, which are the ones to distribute. As long
        as an instance has the model loaded, no other one is considered: that would take a model swap.
        """
        lanes, serving = [], []
        for status in self._able:
            entry = self._times.entries.get((cls, status.accelerator))
            engine = dict(status.engines).get(cls.model)
            if entry is None or cls.model not in status.models or engine is EngineState.FAILED:
                continue
            request_s = entry.times.request_s
            swap_s = self._swap_s(status, cls)
            work_s = self._work_s(status, cls, request_s, opened) + swap_s
            lanes.append(_Lane(status.id, work_s, request_s, swap_s))
            if status.active_model == cls.model or engine is EngineState.STARTING:
                serving.append(lanes[-1])
        return serving or self._worth_swapping(lanes, cls, requests)

    def _worth_swapping(self, lanes: Sequence[_Lane], cls: RequestClass, requests: int) -> list[_Lane]:
        """Return the instances that should swap to the model of the class: two or more, or none.

        One must swap in any case, and the plan chooses it. Each further instance lowers the level of work;
        the mean wait falls by half of that. This must exceed the delay of the requests that the instance
        serves now, or each burst makes all instances swap. Work without a deadline gains nothing.
        """
        if cls.due_ms is None:
            return []
        taken: list[_Lane] = []
        for lane in sorted(lanes, key=lambda lane: (lane.work_s, lane.instance)):
            if taken:
                lower_s = _level_s(taken, requests) - _level_s((*taken, lane), requests)
                away_s = SWAPS_THERE_AND_BACK * lane.swap_s
                if requests * lower_s / 2 <= away_s * max(1, self._others(lane.instance, cls)):
                    break
            taken.append(lane)
        return taken if len(taken) > 1 else []

    def _others(self, instance: InstanceId, cls: RequestClass) -> int:
        """Return the requests that an instance has leased, or has queued for other models."""
        groups = self._queues.get(instance, ())
        queued = sum(group.remaining for group in groups if group.cls.model != cls.model)
        return self._view.leased.get(instance, 0) + queued

    def _work_s(
        self, status: InstanceStatus, cls: RequestClass, request_s: float, opened: Group | None
    ) -> float:
        """Return the work of an instance: leased requests and queued groups that are at least as urgent."""
        kind = status.accelerator
        loaded = self._of_model.get((status.active_model, kind)) if status.active_model else None
        leased_s = self._view.leased.get(status.id, 0) * (loaded.times.request_s if loaded else request_s)
        queued_s = 0.0
        for group in self._queues.get(status.id, ()):
            entry = self._times.entries.get((group.cls, kind))
            goes_first = group.remaining and class_urgency(group.cls) <= class_urgency(cls)
            if entry is not None and goes_first and (opened is None or group.id != opened.id):
                queued_s += group.remaining * entry.times.request_s
        return leased_s + queued_s + self._claims.get(status.id, 0.0)

    def _swap_s(self, status: InstanceStatus, cls: RequestClass) -> float:
        """Return the time to load the model of the class, with the time to empty the present batch."""
        kind = self._fleet.kinds.get(status.accelerator)
        if status.active_model == cls.model or kind is None or cls.model not in kind.models:
            return 0.0
        engines, cost = dict(status.engines), kind.models[cls.model]
        warm = engines.get(cls.model, EngineState.COLD).sleeps
        if status.active_model is None:
            starting = engines.get(cls.model) is EngineState.STARTING
            return 0.0 if starting else cost.swap_cold_s
        loaded = self._of_model.get((status.active_model, status.accelerator))
        emptying_s = loaded.response.mean if loaded and self._view.leased.get(status.id) else 0.0
        return emptying_s + cost.unload_s + (cost.swap_warm_s if warm else cost.swap_cold_s)


def _level_s(lanes: Sequence[_Lane], requests: int) -> float:
    """Return the common level of work after distributing requests over the lanes (water-filling)."""
    rising = sorted(lanes, key=lambda lane: lane.work_s)
    rate = volume = 0.0
    level_s = rising[0].work_s
    for lane in rising:
        # All requests fit below the work of the next lane.
        if rate and rate * lane.work_s - volume >= requests:
            break
        rate += 1 / lane.request_s
        volume += lane.work_s / lane.request_s
        level_s = (requests + volume) / rate
    return level_s

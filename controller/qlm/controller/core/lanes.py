"""Lanes: the instances from the point of view of one class, and the work before a new request on each."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import fsum

from qlm.agents.core.scheduling.swap_hysteresis import SWAPS_THERE_AND_BACK
from qlm.controller.core.estimating.service_times import ServiceTimes
from qlm.controller.core.fleet import Fleet
from qlm.controller.core.strand_homes import NO_HOMES, StrandHomes
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.urgency import class_urgency
from qlm.domain.view import ClusterView
from qlm.planner.swapping.swaps import swap_cost
from qlm.rct_estimator.cluster.service_table import ClassTimes


@dataclass(frozen=True, slots=True)
class Lane:
    """One instance from the point of view of a class.

    Attributes:
        work_s: Seconds of work before a new request, a model swap included.
        request_s: Seconds that one more request adds.
        swap_s: The part of `work_s` for the model swap; 0 for none.
        short: It has the model awake, and less to do for it than fills its batch.
    """

    instance: InstanceId
    work_s: float
    request_s: float
    swap_s: float = 0.0
    short: bool = False

    @property
    def deferred(self) -> "Lane":
        """The lane for work that can wait: agents defer its swap by the time of the swap and the way back."""
        return replace(self, work_s=self.work_s + SWAPS_THERE_AND_BACK * self.swap_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _QueuedWork:
    """Groups with waiting requests on the queue of an instance, by urgency.

    Attributes:
        waiting: Requests of each model.
        urgencies: Urgency of each group, ascending.
        upto_s: Work of the first groups: of none, of one, and so on.
        of_group: Urgency and work of each group.
    """

    waiting: Counter[ModelId]
    urgencies: Sequence[tuple[int, float]]
    upto_s: Sequence[float]
    of_group: Mapping[GroupId, tuple[tuple[int, float], float]]

    def before_s(self, urgency: tuple[int, float], excluded: Collection[GroupId]) -> float:
        """Return the work that is at least as urgent, without some groups."""
        known = [self.of_group[id] for id in excluded if id in self.of_group]
        # Exactly rounded, whatever the order: else plans of equal inputs differ by the order of a set.
        excluded_s = fsum(work_s for each, work_s in known if each <= urgency)
        return max(0.0, self.upto_s[bisect_right(self.urgencies, urgency)] - excluded_s)


class Lanes:
    """Work of each instance from leases, virtual queues and the requests assigned during this regrouping.

    Attributes:
        instance_of: Instance of each group on a virtual queue.
    """

    def __init__(
        self, view: ClusterView, times: ServiceTimes, fleet: Fleet, homes: StrandHomes = NO_HOMES
    ) -> None:
        self._view = view
        self._homes = homes
        self._times = times
        self._fleet = fleet
        self._queues = {queue.instance: list(queue.groups) for queue in view.queues}
        self.instance_of = {group.id: id for id, groups in self._queues.items() for group in groups}
        self._claims: dict[InstanceId, float] = {}
        self._assigned: set[InstanceId] = set()
        self._able = [each for each in view.instances if not each.draining]
        self._serving = {each.id: _serving(each) for each in self._able}
        self._of_model = {(cls.model, kind): entry for (cls, kind), entry in times.entries.items()}
        self._queued = {each.id: self._queued_work(each) for each in self._able}

    def expect(self, lane: Lane) -> None:
        """Count the next request of a class as work of an instance from now on."""
        self._add(lane, 1)

    def claim(self, lane: Lane, requests: int) -> None:
        """Count waiting requests as work of an instance from now on."""
        self._add(lane, requests)
        self._assigned.add(lane.instance)

    def _add(self, lane: Lane, requests: int) -> None:
        self._claims[lane.instance] = self._claims.get(lane.instance, 0.0) + requests * lane.request_s

    def sharing(self, cls: RequestClass, spread: Collection[Group], requests: int) -> list[Lane]:
        """Return the instances that may share requests of a class; none leaves the choice to the plan.

        The work excludes the waiting requests of the groups to spread. As long as an instance has the model
        loaded, no other one is considered: that would take a model swap.
        """
        serving = [status for status in self._able if cls.model in self._serving[status.id]]
        lanes = self._lanes(serving, cls, spread)
        if lanes or cls.due_ms is None:
            return lanes
        return self._worth_swapping(self.able(cls, spread), cls, requests)

    def idle_worth_swapping(
        self, cls: RequestClass, groups: Sequence[Group], ungrouped: int
    ) -> frozenset[InstanceId]:
        """Return the idle instances that should swap to take some of a class without a deadline.

        The gain is a shorter wait alone, which the plan gives no price.

        Args:
            cls: The class.
            groups: All of its groups.
            ungrouped: Its waiting requests without a group.
        """
        if cls.due_ms is not None:
            return frozenset()
        requests = ungrouped + sum(group.remaining for group in groups)
        able, idle = self.able(cls, groups), {each.id for each in self._able if self._is_idle(each)}
        takers = sorted(
            (each.deferred for each in able if each.swap_s and each.instance in idle),
            key=lambda each: (each.work_s, each.instance),
        )
        if not takers or not requests:
            return frozenset()
        homes = {self.instance_of.get(group.id) for group in groups if group.remaining}
        present = [
            each for each in able if not each.swap_s or (each.instance in homes and each.instance not in idle)
        ]
        taken: list[Lane] = []
        for lane in takers if present else ():
            lanes = (*present, *taken)
            lower_s = level_s(lanes, requests) - level_s((*lanes, lane), requests)
            if requests * lower_s / 2 <= SWAPS_THERE_AND_BACK * lane.swap_s:
                break
            taken.append(lane)
        return frozenset(each.instance for each in taken)

    def able(self, cls: RequestClass, spread: Collection[Group]) -> list[Lane]:
        """Return the instances that can serve a class."""
        return self._lanes(self._able, cls, spread)

    def _lanes(
        self, statuses: Sequence[InstanceStatus], cls: RequestClass, spread: Collection[Group]
    ) -> list[Lane]:
        excluded: dict[InstanceId, list[GroupId]] = {}
        for group in spread:
            if (instance := self.instance_of.get(group.id)) is not None:
                excluded.setdefault(instance, []).append(group.id)
        lanes = []
        for status in statuses:
            entry = self._times.entries.get((cls, status.accelerator))
            engine = dict(status.engines).get(cls.model)
            if entry is None or cls.model not in status.models or engine is EngineState.FAILED:
                continue
            request_s = entry.times.request_s
            swap_s = self._swap_s(status, cls)
            work_s = self._work_s(status, cls, request_s, excluded.get(status.id, ())) + swap_s
            work_s += self._homes.away_s(cls, entry, status.id)
            lanes.append(Lane(status.id, work_s, request_s, swap_s, self._is_short(status, cls, entry.times)))
        return lanes

    def _worth_swapping(self, lanes: Sequence[Lane], cls: RequestClass, requests: int) -> list[Lane]:
        """Return the instances that should swap to the model of the class: two or more, or none.

        One must swap in any case, and the plan chooses it. Each further instance lowers the level of work;
        the mean wait falls by half of that. This must exceed the delay of the requests that the instance
        serves now, or each burst makes all instances swap. Work without a deadline gains nothing.
        """
        taken: list[Lane] = []
        for lane in sorted(lanes, key=lambda lane: (lane.work_s, lane.instance)):
            if taken:
                lower_s = level_s(taken, requests) - level_s((*taken, lane), requests)
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

    def _is_idle(self, status: InstanceStatus) -> bool:
        """Return whether an instance has an engine awake, and nothing to do or on its queue."""
        queued = any(group.remaining for group in self._queues.get(status.id, ()))
        busy = self._view.leased.get(status.id, 0) or status.id in self._assigned
        return status.active_model is not None and not queued and not busy

    def _is_short(self, status: InstanceStatus, cls: RequestClass, times: ClassTimes) -> bool:
        if status.active_model != cls.model:
            return False
        own = self._queued[status.id].waiting[cls.model] + self._view.leased.get(status.id, 0)
        return own + self._claims.get(status.id, 0.0) / times.request_s < times.batch

    def _work_s(
        self, status: InstanceStatus, cls: RequestClass, request_s: float, excluded: Collection[GroupId]
    ) -> float:
        """Return the work of an instance: leased requests and queued groups that are at least as urgent."""
        kind = status.accelerator
        loaded = self._of_model.get((status.active_model, kind)) if status.active_model else None
        leased_s = self._view.leased.get(status.id, 0) * (loaded.times.request_s if loaded else request_s)
        queued_s = self._queued[status.id].before_s(class_urgency(cls), excluded)
        return leased_s + queued_s + self._claims.get(status.id, 0.0)

    def _queued_work(self, status: InstanceStatus) -> "_QueuedWork":
        """Sum up the queue of an instance once: each class asks for another part of it."""
        waiting: Counter[ModelId] = Counter()
        rows: list[tuple[tuple[int, float], GroupId, float]] = []
        for group in self._queues.get(status.id, ()):
            waiting[group.cls.model] += group.remaining
            entry = self._times.entries.get((group.cls, status.accelerator))
            if entry is not None and group.remaining:
                work_s = group.remaining * entry.times.request_s
                rows.append((class_urgency(group.cls), group.id, work_s))
        rows.sort()
        return _QueuedWork(
            waiting=waiting,
            urgencies=[urgency for urgency, _, _ in rows],
            upto_s=[0.0, *accumulate(work_s for _, _, work_s in rows)],
            of_group={id: (urgency, work_s) for urgency, id, work_s in rows},
        )

    def _swap_s(self, status: InstanceStatus, cls: RequestClass) -> float:
        """Return the time to load the model of the class, with the time to empty the present batch."""
        kind = self._fleet.kinds.get(status.accelerator)
        if status.active_model == cls.model or kind is None or cls.model not in kind.models:
            return 0.0
        engine = dict(status.engines).get(cls.model, EngineState.COLD)
        cost = kind.models[cls.model]
        if status.active_model is None:
            return 0.0 if engine is EngineState.STARTING else cost.swap_cold_s
        loaded = self._of_model.get((status.active_model, status.accelerator))
        emptying_s = loaded.response.mean if loaded and self._view.leased.get(status.id) else 0.0
        return emptying_s + cost.unload_s + swap_cost(cost).takes_s(engine.tier)


def _serving(status: InstanceStatus) -> frozenset[ModelId]:
    """Return the models that an instance has awake, or is starting."""
    starting = {model for model, engine in status.engines if engine is EngineState.STARTING}
    return frozenset(starting if status.active_model is None else {*starting, status.active_model})


def level_s(lanes: Sequence[Lane], requests: int) -> float:
    """Return the common level of work after distributing requests over the lanes (water-filling)."""
    rising = sorted(lanes, key=lambda lane: lane.work_s)
    rate = volume = 0.0
    level = rising[0].work_s
    for lane in rising:
        # All requests fit below the work of the next lane.
        if rate and rate * lane.work_s - volume >= requests:
            break
        rate += 1 / lane.request_s
        volume += lane.work_s / lane.request_s
        level = (requests + volume) / rate
    return level

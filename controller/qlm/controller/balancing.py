"""Load balance: how the waiting and the next requests of a class are spread over the instances.

A group is served by one instance, and new arrivals join the newest group of their class at once. So that
nobody waits at one instance while another one has places free, the open group moves to where the next
request would wait least, keeps no more requests than its fair share, and what must be split off
becomes a group for each instance that is to take some. Under overload all instances are about equally far
behind, groups fill up, and nothing of this happens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from qlm.controller.estimating.service_times import ServiceTimes
from qlm.controller.fleet import Fleet
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.view import ClassView, ClusterView

UNEVEN_SHARE: Final = 0.25
"""An instance may be behind another one by this share of the other's work before anything is moved."""

SWAPS: Final = 2
"""There and back: so many model swaps keep an instance from those whom it serves now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What balance asks of the groups of one class.

    Attributes:
        keep: Waiting requests that the open group keeps at most; the rest is cut off. None for all.
        shares: Where requests of no group belong, and how many; empty if that is all the same.
        home: Where the open group belongs while nothing in it waits; None for where it is.
        leave: The next arrivals are better off elsewhere: seal the open group if requests wait in it.
    """

    keep: int | None = None
    shares: tuple[tuple[InstanceId, int], ...] = ()
    home: InstanceId | None = None
    leave: bool = False


EVEN: Final = Spread()
"""Nothing needs to change."""


@dataclass(frozen=True, slots=True)
class _Lane:
    """One instance as a class sees it.

    Attributes:
        instance: Its name.
        work_s: Seconds of work before a new request, a model swap included.
        request_s: What one more adds.
        swap_s: Of that work the model swap; 0 if none need be.
    """

    instance: InstanceId
    work_s: float
    request_s: float
    swap_s: float = 0.0


class Loads:
    """The work that each instance has ahead, from leases and virtual queues, as groups are being formed.

    Args:
        view: The cluster.
        times: How long classes take.
        fleet: Costs of model changes.
    """

    def __init__(self, view: ClusterView, times: ServiceTimes, fleet: Fleet) -> None:
        self._view = view
        self._times = times
        self._fleet = fleet
        self._queues = {queue.instance: list(queue.groups) for queue in view.queues}
        self._home = {group.id: id for id, groups in self._queues.items() for group in groups}
        self._claims: dict[InstanceId, float] = {}
        self._able = [each for each in view.instances if not each.draining]
        self._of_model = {(cls.model, kind): entry for (cls, kind), entry in times.entries.items()}

    def spread(self, view: ClassView) -> Spread:
        """Say how a class is to be spread, and count on its being done."""
        opened = view.groups[-1] if view.groups and not view.groups[-1].sealed else None
        waiting = opened.remaining if opened else 0
        loose = view.queued - sum(group.remaining for group in view.groups)
        lanes = self._lanes(view.cls, opened, waiting + max(0, loose))
        if not lanes:
            return EVEN
        at = next((lane for lane in lanes if opened and lane.instance == self._home.get(opened.id)), None)
        ahead_s = {lane: lane.work_s + (waiting * lane.request_s if lane is at else 0.0) for lane in lanes}
        best = min(lanes, key=lambda lane: (ahead_s[lane], lane.instance))
        self._claims[best.instance] = self._claims.get(best.instance, 0.0) + best.request_s
        if at is None:
            return Spread(shares=self._shares(lanes, waiting + max(0, loose)), home=best.instance)
        uneven_s = max(at.request_s, UNEVEN_SHARE * ahead_s[best])
        if best is at or ahead_s[at] - ahead_s[best] <= uneven_s:
            return Spread(shares=self._shares(lanes, max(0, loose)), home=at.instance)
        level_s = _level_s(lanes, waiting + max(0, loose))
        keep = min(waiting, max(0, round((level_s - at.work_s) / at.request_s)))
        cut = waiting - keep + max(0, loose)
        kept = replace(at, work_s=at.work_s + keep * at.request_s)
        after = [kept if lane is at else lane for lane in lanes]
        return Spread(keep=keep, shares=self._shares(after, cut), home=best.instance, leave=True)

    def _shares(self, lanes: Sequence[_Lane], requests: int) -> tuple[tuple[InstanceId, int], ...]:
        """Pour requests over the lanes, the least busy first, and count on their coming."""
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
        """Instances over which so many requests of a class may be spread; none if plans are to say where.

        What waits in its open group is left out of their work: it is what is to be spread. A group of
        another model at the head of a queue has the models swapped: as long as an instance has the model,
        no other one is considered.
        """
        lanes = []
        for status in self._able:
            entry = self._times.entries.get((cls, status.accelerator))
            failed = dict(status.engines).get(cls.model) is EngineState.FAILED
            if entry is not None and cls.model in status.models and not failed:
                request_s = entry.times.request_s
                swap_s = self._swap_s(status, cls)
                work_s = self._work_s(status, cls, request_s, opened) + swap_s
                lanes.append(_Lane(status.id, work_s, request_s, swap_s))
        serving = [lane for lane in lanes if self._serves(lane.instance, cls.model)]
        return serving or self._worth_swapping(lanes, cls, requests)

    def _worth_swapping(self, lanes: Sequence[_Lane], cls: RequestClass, requests: int) -> list[_Lane]:
        """Say over which instances to spread requests whose model none has loaded: two or more, or none.

        One of them must swap in any case, and plans say which. Each further one lowers the height to which
        the work fills them; a request waits half of that less on average. That must be worth more than what
        those wait whom the instance serves now, or each burst has all instances swap to its model. Work
        without a deadline gains nothing by waiting less.
        """
        if cls.due_ms is None:
            return []
        taken: list[_Lane] = []
        for lane in sorted(lanes, key=lambda lane: (lane.work_s, lane.instance)):
            if taken:
                lower_s = _level_s(taken, requests) - _level_s((*taken, lane), requests)
                if requests * lower_s / 2 <= SWAPS * lane.swap_s * max(1, self._others(lane.instance, cls)):
                    break
            taken.append(lane)
        return taken if len(taken) > 1 else []

    def _others(self, instance: InstanceId, cls: RequestClass) -> int:
        """Requests that an instance holds, or has on its queue for other models."""
        groups = self._queues.get(instance, ())
        queued = sum(group.remaining for group in groups if group.cls.model != cls.model)
        return self._view.leased.get(instance, 0) + queued

    def _serves(self, instance: InstanceId, model: ModelId) -> bool:
        status = next(each for each in self._able if each.id == instance)
        return status.active_model == model or dict(status.engines).get(model) is EngineState.STARTING

    def _work_s(
        self, status: InstanceStatus, cls: RequestClass, request_s: float, opened: Group | None
    ) -> float:
        """Requests that it holds, and groups on its queue that are as urgent."""
        kind = status.accelerator
        loaded = self._of_model.get((status.active_model, kind)) if status.active_model else None
        held_s = self._view.leased.get(status.id, 0) * (loaded.times.request_s if loaded else request_s)
        queued_s = 0.0
        for group in self._queues.get(status.id, ()):
            entry = self._times.entries.get((group.cls, kind))
            ahead = group.remaining and _urgency(group.cls) <= _urgency(cls)
            if entry is not None and ahead and (opened is None or group.id != opened.id):
                queued_s += group.remaining * entry.times.request_s
        return held_s + queued_s + self._claims.get(status.id, 0.0)

    def _swap_s(self, status: InstanceStatus, cls: RequestClass) -> float:
        """What loading the class's model would take, the end of the present batch included."""
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


def _urgency(cls: RequestClass) -> tuple[int, float]:
    return (cls.priority, float("inf") if cls.due_ms is None else cls.due_ms)


def _level_s(lanes: Sequence[_Lane], requests: int) -> float:
    """The height to which the lanes are filled if so many requests are poured over them."""
    rising = sorted(lanes, key=lambda lane: lane.work_s)
    rate = volume = 0.0
    level_s = rising[0].work_s
    for lane in rising:
        # So many requests fit below the next lane's work.
        if rate and rate * lane.work_s - volume >= requests:
            break
        rate += 1 / lane.request_s
        volume += lane.work_s / lane.request_s
        level_s = (requests + volume) / rate
    return level_s

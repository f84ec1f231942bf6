"""Load balance: distribution of the waiting and the next requests of a class over the instances.

One instance serves a group, and new arrivals join the newest group of their class at once. So that no request
waits while another instance has free batch slots:

* the open group moves to the instance where the next request would wait least;
* it keeps no more requests than the fair share of its instance;
* requests split off form a new group for each instance that is to serve some;
* an instance that would run out of work gets some of what waits in any group of its model, also sealed ones;
* so does an idle instance of batch work and demoted requests of another model, if that is worth the swap.

Under overload all instances have about equal work and groups fill up, so nothing changes.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from qlm.controller.core.estimating.service_times import ServiceTimes
from qlm.controller.core.fleet import Fleet
from qlm.controller.core.lanes import Lane, Lanes, level_s
from qlm.controller.core.strand_homes import NO_HOMES, StrandHomes
from qlm.domain.group import Group
from qlm.domain.ids import GroupId, InstanceId
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
        cuts: Groups of which requests are split off, sealed ones among them, with the number.
    """

    keep_max: int | None = None
    shares: tuple[tuple[InstanceId, int], ...] = ()
    placement: InstanceId | None = None
    seal: bool = False
    cuts: tuple[tuple[GroupId, int], ...] = ()


BALANCED: Final = BalanceTarget()
"""No change."""


class LoadBalance:
    """Balance of the classes of a view, one after the other: what one gets is work of its instances."""

    def __init__(
        self, view: ClusterView, times: ServiceTimes, fleet: Fleet, homes: StrandHomes = NO_HOMES
    ) -> None:
        self._lanes = Lanes(view, times, fleet, homes)

    def target(self, view: ClassView) -> BalanceTarget:
        """Return the balance of a class, and count its requests as work of the chosen instances."""
        opened = view.groups[-1] if view.groups and not view.groups[-1].sealed else None
        waiting = opened.remaining if opened else 0
        ungrouped = max(0, view.queued - sum(group.remaining for group in view.groups))
        spread = (opened,) if opened else ()
        lanes = self._lanes.sharing(view.cls, spread, waiting + ungrouped)
        if not lanes:
            return BALANCED
        idle = self._lanes.idle_worth_swapping(view.cls, view.groups, ungrouped)
        if (idle or any(lane.short for lane in lanes)) and self._has_others(view, lanes):
            relief = self._relief(view, ungrouped, idle)
            if relief is not None:
                return relief
        if idle:
            lanes += [each.deferred for each in self._lanes.able(view.cls, spread) if each.instance in idle]
        present = self._lanes.instance_of.get(opened.id) if opened else None
        at = next((lane for lane in lanes if opened and lane.instance == present), None)
        backlog_s = {lane: lane.work_s + (waiting * lane.request_s if lane is at else 0.0) for lane in lanes}
        best = min(lanes, key=lambda lane: (backlog_s[lane], lane.instance))
        self._lanes.expect(best)
        if at is None:
            shares = self._shares(lanes, waiting + ungrouped)
            return BalanceTarget(shares=shares, placement=best.instance)
        uneven_s = max(at.request_s, UNEVEN_SHARE * backlog_s[best])
        if best is at or backlog_s[at] - backlog_s[best] <= uneven_s:
            return BalanceTarget(shares=self._shares(lanes, ungrouped), placement=at.instance)
        keep = min(waiting, _share(at, level_s(lanes, waiting + ungrouped)))
        after = [_after(lane, keep) if lane is at else lane for lane in lanes]
        shares = self._shares(after, waiting - keep + ungrouped)
        return BalanceTarget(keep_max=keep, shares=shares, placement=best.instance, seal=True)

    def _has_others(self, view: ClassView, lanes: Sequence[Lane]) -> bool:
        """Return True if requests wait in sealed groups, or where the model must be swapped."""
        sharing = {lane.instance for lane in lanes}
        return any(
            group.remaining and (group.sealed or self._lanes.instance_of.get(group.id) not in sharing)
            for group in view.groups
        )

    def _relief(self, view: ClassView, ungrouped: int, idle: Collection[InstanceId]) -> BalanceTarget | None:
        """Level a class over the instances that hold it and those that would run out of work; None if level.

        Only then are sealed groups cut. Plans move them whole, and the last one of an instance may be all
        that it still has to do.
        """
        at: dict[InstanceId, list[Group]] = {}
        for group in view.groups:
            home = self._lanes.instance_of.get(group.id)
            if group.remaining and home is not None:
                at.setdefault(home, []).append(group)
        able = self._lanes.able(view.cls, view.groups)
        groups_at = {
            lane: at.get(lane.instance, [])
            for lane in (each.deferred if each.instance in idle else each for each in able)
            if lane.short or lane.instance in at or lane.instance in idle
        }
        if all(groups or not (lane.short or lane.instance in idle) for lane, groups in groups_at.items()):
            return None
        level = level_s(tuple(groups_at), sum(map(_waiting, groups_at.values())) + ungrouped)
        cuts: dict[GroupId, int] = {}
        for lane, groups in groups_at.items():
            excess = _waiting(groups) - _share(lane, level)
            if groups and excess * lane.request_s > max(lane.request_s, UNEVEN_SHARE * level):
                cuts.update(_newest(groups, excess))
        if not cuts:
            return None
        taking = [
            _after(lane, _waiting(groups))
            for lane, groups in groups_at.items()
            if not any(group.id in cuts for group in groups)
        ]
        shares = self._shares(taking, sum(cuts.values()) + ungrouped)
        return BalanceTarget(shares=shares, placement=shares[0][0], cuts=tuple(cuts.items()))

    def _shares(self, lanes: Sequence[Lane], requests: int) -> tuple[tuple[InstanceId, int], ...]:
        """Distribute requests over the lanes, the least loaded first, and count them as work there."""
        if not requests or not lanes:
            return ()
        level = level_s(lanes, requests)
        exact = {lane: max(0.0, (level - lane.work_s) / lane.request_s) for lane in lanes}
        shares = {lane: int(count) for lane, count in exact.items()}
        short = requests - sum(shares.values())
        for lane in sorted(exact, key=lambda lane: (shares[lane] - exact[lane], lane.instance))[:short]:
            shares[lane] += 1
        taking = sorted((lane for lane in lanes if shares[lane]), key=lambda x: (x.work_s, x.instance))
        for lane in taking:
            self._lanes.claim(lane, shares[lane])
        return tuple((lane.instance, shares[lane]) for lane in taking)


def _share(lane: Lane, level: float) -> int:
    """Return the requests that fill a lane up to a level of work."""
    return max(0, round((level - lane.work_s) / lane.request_s))


def _after(lane: Lane, requests: int) -> Lane:
    """Return a lane with a number of requests more."""
    return replace(lane, work_s=lane.work_s + requests * lane.request_s)


def _waiting(groups: Sequence[Group]) -> int:
    return sum(group.remaining for group in groups)


def _newest(groups: Sequence[Group], requests: int) -> Iterator[tuple[GroupId, int]]:
    """Yield how many of that many requests each group gives, the newest first."""
    for group in reversed(groups):
        given = min(group.remaining, requests)
        requests -= given
        if given:
            yield group.id, given

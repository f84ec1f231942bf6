"""Forecasts that were made, and how they came out: the errors that correct later ones.

A group is forecast when it is seen first, and again after 10, 20, 40 s and so on. Two events are awaited: its
last request has left the queue, and as many requests of its class have ended as came up to that one. Both are
read from the counters of the class, so agents report nothing for it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from qlm.controller.core.expected.priors import ENDS, WAITS
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId
from qlm.domain.values import value
from qlm.domain.view import ClassView, ClusterView
from qlm.rct_estimator.forecast_errors import ForecastErrors, Turn

LOOK_EVERY_NS: Final = 250_000_000
"""Least time between two looks at the counters."""

NOTE_EVERY_NS: Final = 2_000_000_000
"""Least time between two times at which forecasts are noted."""

AGAIN_NS: Final = 10_000_000_000
"""Time until a group is forecast again, doubled each time."""

OPEN_MAX: Final = 500
"""Most open forecasts; none is noted beyond."""

OPEN_MAX_NS: Final = 7_200 * 1_000_000_000
"""A forecast that is open for longer counts as if it had come out then."""

RETURN_NS: Final = 20_000_000_000
"""Time for which a request must stay away from the queue: agents return requests that they preempt."""

OVERDUE_S: Final = 5.0
"""Delay after which an open forecast counts, with its present delay, until it comes out."""


class Event(Enum):
    """An awaited event of a group."""

    LEFT = "left"
    ENDED = "ended"


@value
class OpenForecast:
    """A forecast that has not come out yet.

    Attributes:
        due: Value of the counter of the class at which the event has come.
        at_ns: Time of the forecast.
        forecast_s: Time to the event.
        came_ns: Time of the event; None before it.
    """

    event: Event
    cls: RequestClass
    due: int
    at_ns: int
    turn: Turn
    forecast_s: float
    came_ns: int | None = None


@value
class Wait:
    """Forecast of a group, seconds from now.

    Attributes:
        leaves_s: Its last request leaves the queue.
        ends_s: That request has ended.
    """

    turn: Turn
    leaves_s: float
    ends_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForecastLog:
    """State of the log.

    Attributes:
        waits: Errors of the times until groups have left the queue.
        ends: Errors of the times until they have ended.
        open: Forecasts that have not come out.
        again_ns: Earliest time of the next forecast of each group, and the pause after that.
        demoted: Requests ever demoted from each class, as last seen.
        looked_ns: Time of the last look.
        noted_ns: Time at which forecasts were last noted.
    """

    waits: ForecastErrors = field(default_factory=lambda: ForecastErrors.of(WAITS))
    ends: ForecastErrors = field(default_factory=lambda: ForecastErrors.of(ENDS))
    open: tuple[OpenForecast, ...] = ()
    again_ns: Mapping[GroupId, tuple[int, int]] = field(default_factory=dict)
    demoted: Mapping[RequestClass, int] = field(default_factory=dict)
    looked_ns: int = 0
    noted_ns: int = 0

    def learned(self, weight: float = 1.0) -> "ForecastLog":
        """Return what was learned, with that weight, and no open forecasts."""
        return ForecastLog(waits=self.waits.faded(weight), ends=self.ends.faded(weight))

    def overdue(self, now_ns: int) -> "ForecastLog":
        """Return the log as if overdue forecasts had come out now: only the quick ones have, otherwise."""
        log = self
        for each in self.open:
            passed_s = (now_ns - each.at_ns) / 1e9
            if each.came_ns is None and passed_s > each.forecast_s + OVERDUE_S:
                log = _counted(log, each, passed_s)
        return log


NOTHING_FORECAST: Final = ForecastLog()
"""Log of a controller without a history."""


def look(log: ForecastLog, view: ClusterView, now_ns: int) -> ForecastLog:
    """Return the log after a view: forecasts whose event has come are counted.

    An event that comes together with demotions of its class is left out: they end a wait early. So is one
    beyond the accepted requests: the store has lost its counters since the forecast.
    """
    if not log.open or 0 <= now_ns - log.looked_ns < LOOK_EVERY_NS:
        return log
    classes = {each.cls: each for each in view.classes}
    cls: RequestClass | None = None
    of_class = _NO_COUNTERS
    leased, kept, counters = sum(view.leased.values()), [], dict[RequestClass, _Counters]()
    for each in log.open:
        if each.cls is not cls:  # neighbours often share it, and its hash takes time
            cls = each.cls
            of_class = counters[cls] = _counters(cls, classes, leased, log.demoted.get(cls))
        if not of_class.waits:  # what has ended cannot be seen
            came_ns = each.came_ns or now_ns
            log = _counted(log, each, (came_ns - each.at_ns) / 1e9) if each.event is Event.LEFT else log
            continue
        if each.due > of_class.accepted:  # the store was emptied, and counts anew
            continue
        came = (of_class.left if each.event is Event.LEFT else of_class.ended) >= each.due
        if not came and each.came_ns is None and now_ns - each.at_ns <= OPEN_MAX_NS:
            kept.append(each)
            continue
        seen = each if came == (each.came_ns is not None) else replace(each, came_ns=now_ns if came else None)
        if came and each.came_ns is None and of_class.more_demoted:
            continue
        if _settled(seen, now_ns):
            log = _counted(log, seen, ((seen.came_ns or now_ns) - seen.at_ns) / 1e9)
        else:
            kept.append(seen)
    demoted = {cls: of_class.demoted for cls, of_class in counters.items()}
    if tuple(kept) == log.open and demoted == log.demoted:
        return log
    return replace(log, open=tuple(kept), demoted=demoted, looked_ns=now_ns)


def is_time(log: ForecastLog, now_ns: int) -> bool:
    """Return whether forecasts are noted again."""
    return not 0 <= now_ns - log.noted_ns < NOTE_EVERY_NS


def due_groups(log: ForecastLog, groups: Iterable[Group], now_ns: int) -> set[GroupId]:
    """Return the groups of which `note` notes a forecast now."""
    next_ns = {id: at_ns for id, (at_ns, _) in log.again_ns.items()}
    return {group.id for group in groups if now_ns >= next_ns.get(group.id, 0)}


def note(
    log: ForecastLog, view: ClusterView, groups: Iterable[Group], waits: Mapping[GroupId, Wait], now_ns: int
) -> ForecastLog:
    """Return the log with the forecasts of those groups whose time it is.

    Args:
        log: The log.
        view: The cluster.
        groups: All groups, by class in order of arrival.
        waits: Uncorrected forecasts.
        now_ns: Time of the view.
    """
    classes = {each.cls: each for each in view.classes}
    opened, again_ns, before = list(log.open), dict[GroupId, tuple[int, int]](), dict[RequestClass, int]()
    for group in groups:
        before[group.cls] = before.get(group.cls, 0) + group.remaining
        next_ns, pause_ns = log.again_ns.get(group.id, (0, AGAIN_NS))
        wait, of_class = waits.get(group.id), classes.get(group.cls)
        if now_ns >= next_ns and wait is not None and of_class is not None and len(opened) < OPEN_MAX:
            opened += _opened(of_class, before[group.cls], wait, now_ns)
            next_ns, pause_ns = now_ns + pause_ns, 2 * pause_ns
        again_ns[group.id] = next_ns, pause_ns
    if len(opened) == len(log.open) and again_ns == log.again_ns:
        return log
    demoted = {cls: _demoted(classes, cls) for cls in dict.fromkeys(each.cls for each in opened)}
    return replace(
        log,
        open=tuple(opened),
        again_ns=again_ns,
        demoted={**demoted, **log.demoted},
        noted_ns=now_ns,
    )


def _opened(view: ClassView, rank: int, wait: Wait, now_ns: int) -> Iterator[OpenForecast]:
    """Yield the forecasts of a group whose last request has this rank in its class, from 1."""
    due = view.accepted - view.queued + rank
    for event, forecast_s in ((Event.LEFT, wait.leaves_s), (Event.ENDED, wait.ends_s)):
        yield OpenForecast(
            event=event, cls=view.cls, due=due, at_ns=now_ns, turn=wait.turn, forecast_s=forecast_s
        )


def _demoted(classes: Mapping[RequestClass, ClassView], cls: RequestClass) -> int:
    late = None if cls.late else classes.get(cls.missed())
    return late.accepted if late is not None else 0


class _Counters(NamedTuple):
    """Counters of a class.

    Attributes:
        waits: The view has the class.
        accepted: Requests ever accepted.
        left: Requests that have left the queue.
        ended: Requests that have ended.
        demoted: Requests ever demoted.
        more_demoted: They have become more since the last look.
    """

    waits: bool
    accepted: int
    left: int
    ended: int
    demoted: int
    more_demoted: bool


_NO_COUNTERS: Final = _Counters(False, 0, 0, 0, 0, False)


def _counters(
    cls: RequestClass, classes: Mapping[RequestClass, ClassView], leased: int, demoted_before: int | None
) -> _Counters:
    """Read the counters of a class.

    Requests that ended without an answer are not counted by the store. They show where a class would have
    more requests in work than all agents have leases.
    """
    view, demoted = classes.get(cls), _demoted(classes, cls)
    more_demoted = demoted_before is not None and demoted != demoted_before
    if view is None:
        return _Counters(False, 0, 0, 0, demoted, more_demoted)
    left, ended = view.accepted - view.queued, view.finished + demoted
    ended += max(0, left - ended - leased)
    return _Counters(True, view.accepted, left, ended, demoted, more_demoted)


def _settled(each: OpenForecast, now_ns: int) -> bool:
    if each.came_ns is None:
        return now_ns - each.at_ns > OPEN_MAX_NS
    return each.event is Event.ENDED or now_ns - each.came_ns >= RETURN_NS


def _counted(log: ForecastLog, each: OpenForecast, actual_s: float) -> ForecastLog:
    if each.event is Event.LEFT:
        return replace(log, waits=log.waits.after(each.turn, each.forecast_s, actual_s))
    return replace(log, ends=log.ends.after(each.turn, each.forecast_s, actual_s))

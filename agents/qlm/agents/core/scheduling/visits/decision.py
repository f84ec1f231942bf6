"""When an instance leaves its model, and for which one. Pure; all times are seconds from now.

A visit is as long as the deadlines of the other models allow: each swap takes the instance from everybody.
The latest moment to leave is computed backward over the models that wait, so that an instance of three models
does not leave a whole visit too late. It leaves then if more requests are saved by it than lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from qlm.agents.core.scheduling.visits.backlog import Backlog
from qlm.agents.core.scheduling.visits.remain import MARGIN_S, NEVER, Leave, Remain, Work
from qlm.domain.ids import ModelId

DECIDE_WITHIN_S: Final = 2.0
"""Leaving is weighed when the latest moment is nearer than this."""

LEAST_VISIT_SWAPS: Final = 2.5
"""Least length of a visit with work, in swap times: swaps take at most 1 / 3.5 of the time, whatever waits.
Without it each model is urgent again after every swap, and nothing is served."""

DELAY_WORK_MAX_S: Final = 20.0
"""Longest work of the present model that a delay of the others is weighed with."""

DELAY_MAX_S: Final = 30.0
"""Longest delay of the others that a departure is weighed against. With objectives of many minutes, half of
one would count all that waits as saved by leaving now, and no visit would last until its answers end."""

RESIDENCE_S: Final = 120.0
"""Length of a visit to a model whose swap takes longer than its objective. What waits now is lost; only who
comes while it is awake can be in time. So it is weighed as a change of residence."""

WAITING_WORTH: Final = 0.05
"""Worth to an idle instance of any waiting request, whether it can still be in time or not, in missed
objectives: that of work without objectives in placements."""

START_RETURNS: Final = 3.0
"""A swap that takes longer than so many returns to the present model loads another one from storage."""

STARTED_S: Final = 300.0
"""Time for which a start from storage pays: from then on swaps to that model are short, too."""

KNOWN_ARRIVALS: Final = 4.0
"""Arrivals that an expected rate rests on: the longer none comes, the fewer are expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model that could be served next.

    Attributes:
        model: The model.
        backlog: Its waiting requests that can still be in time.
        swap_s: Time until it would serve, from the decision on.
        arrivals_rps: Expected arrivals with a deadline.
        waiting: Number of all of its waiting requests.
        priority: Lowest priority number among them.
    """

    model: ModelId
    backlog: Backlog
    swap_s: float
    arrivals_rps: float = 0.0
    waiting: int = 0
    priority: int = 0

    @property
    def leave_at_s(self) -> float:
        """Latest moment to leave for it, if it is the only one."""
        return self.backlog.first_s - self.swap_s - MARGIN_S

    @property
    def too_slow(self) -> bool:
        """Return True if its swap takes longer than its tightest objective."""
        return self.swap_s >= self.backlog.objective_s

    @property
    def stays_s(self) -> float:
        """Time that a visit to it takes at least."""
        return max(self.backlog.work_s, RESIDENCE_S) if self.too_slow else self.backlog.work_s

    @property
    def away_s(self) -> float:
        """Time until all that waits for it is started."""
        return self.swap_s + self.backlog.work_s

    @property
    def worth(self) -> float:
        """What an idle instance gains by a visit that begins now, in missed objectives."""
        return self.backlog.gained(self.swap_s) + WAITING_WORTH * self.waiting

    def saved(self, begin_s: float, delay_s: float) -> float:
        """Return the requests that a service from `begin_s` on saves against one that is later by a delay."""
        return self.backlog.lost(begin_s + delay_s) - self.backlog.lost(begin_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The awake model.

    Attributes:
        backlog: Its waiting requests that can still be in time.
        back_s: Time until it would serve again after a sleep.
        awake_s: Time since it serves.
        idle_s: Time since it had anything to do; 0 while it has.
        running_slack_s: Latest starts of running requests that still have an objective to meet.
        evicting_s: Time to compute again what an eviction of all running requests discards.
        drain_s: Time until the running requests that may not be evicted have ended.
        ends_s: Time until all other running requests have ended, stopgaps left out; 0 without any.
        service_s: Mean time that one of its requests adds to the wait of others.
        arrivals: Expected arrivals per second and time that one can wait, by class.
        priority: Lowest priority number among its running and waiting requests; None without any.
        waiting: Times and latest start of a request of each of its waiting groups.
        spare_s: Work of prompts that can be begun as a stopgap (`Remain.spare_s`).
    """

    backlog: Backlog
    back_s: float
    awake_s: float
    idle_s: float = 0.0
    running_slack_s: Sequence[float] = ()
    evicting_s: float = 0.0
    drain_s: float = 0.0
    ends_s: float = 0.0
    service_s: float = 0.05
    arrivals: Sequence[tuple[float, float]] = ()
    priority: int | None = None
    waiting: Sequence[tuple[Work, float]] = ()
    spare_s: float = 0.0

    def cost_of_absence(self, away_s: float) -> float:
        """Return the requests that are lost if it serves again only after `away_s`."""
        waiting = self.backlog.lost(away_s) - self.backlog.lost(0.0)
        running = sum(slack_s < away_s for slack_s in self.running_slack_s)
        return waiting + running + self.coming_lost(away_s) + self.evicting_s / max(self.service_s, 1e-6)

    def coming_lost(self, away_s: float) -> float:
        """Return the expected arrivals that are lost if it serves again only after `away_s`."""
        lost = sum(rate_rps * max(0.0, away_s - slack_s) for rate_rps, slack_s in self.arrivals)
        return lost * self._still_expected

    @property
    def coming_rps(self) -> float:
        """Expected arrivals with an objective."""
        return sum(rate_rps for rate_rps, _slack_s in self.arrivals) * self._still_expected

    @property
    def _still_expected(self) -> float:
        """Part of the expected rate that the time without arrivals leaves (mean of a Gamma distribution)."""
        missed = self.idle_s * sum(rate_rps for rate_rps, _slack_s in self.arrivals)
        return KNOWN_ARRIVALS / (KNOWN_ARRIVALS + missed)


def decide(present: Present, others: Sequence[Candidate]) -> Remain | Leave:
    """Choose to remain, or a model to leave for, given that the engine of `present` is awake."""
    if not others:
        return NEVER
    urgent = min(others, key=lambda each: (each.priority, each.backlog.first_s, each.model))
    if present.priority is not None and urgent.priority < present.priority:
        return Leave(model=urgent.model, why="work of a higher priority needs it")
    order = sorted((each for each in others if each.backlog), key=lambda each: (each.leave_at_s, each.model))
    until_s = _latest_moment(order) - present.drain_s
    busy = present.idle_s <= 0.0
    if busy and present.awake_s < LEAST_VISIT_SWAPS * present.back_s:
        return NEVER
    if until_s < DECIDE_WITHIN_S:
        best = _best(present, order)
        if best is not None:
            return best
        # Staying is worth more: begin what that is worth, at least for as long as a swap takes.
        until_s = max(until_s, min(each.swap_s for each in order))
    remain = Remain(
        until_s=max(until_s, present.drain_s),  # before that it cannot leave in any case
        back_s=_round_s(order) + present.back_s,
        spare_s=present.spare_s,
    )
    if any(remain.meant(work, latest_start_s=start_s) for work, start_s in present.waiting):
        return replace(remain, spare_s=0.0)
    if busy or (present.waiting and present.spare_s > 0):
        return remain
    return _when_idle(present, others) or replace(remain, why=_why_idle(present, others))


def _latest_moment(order: Sequence[Candidate]) -> float:
    until_s = float("inf")
    for each in reversed(order):
        until_s = min(each.leave_at_s, until_s - each.swap_s - each.backlog.work_s)
    return until_s


def _round_s(order: Sequence[Candidate]) -> float:
    return sum(each.swap_s + each.backlog.work_s for each in order)


def _best(present: Present, order: Sequence[Candidate]) -> Leave | None:
    """Return the model whose visit, before all others, saves the most requests; None if it costs more."""
    best, best_gain = None, 0.0
    for first in order:
        visits = [first, *(each for each in order if each is not first)]
        away_s = _round_s(visits) - first.backlog.work_s + first.stays_s + present.back_s
        gain = _gain(present, visits) - present.cost_of_absence(away_s)
        if gain > best_gain:
            best, best_gain = first, gain
    if best is None:
        return None
    return Leave(model=best.model, why=f"{best.model} would lose {best_gain:.1f} requests more than it costs")


def _gain(present: Present, visits: Sequence[Candidate]) -> float:
    """Return the requests that leaving now saves against leaving after some more of the present work.

    That is at the latest once what runs has ended: a longer delay is no alternative, and would count what
    waits as saved by an eviction that saves little.
    """
    work_s = min(present.backlog.work_s, DELAY_WORK_MAX_S)
    longest_s = min(DELAY_MAX_S, present.ends_s or DELAY_MAX_S)
    first = visits[0]
    gain = first.arrivals_rps * first.stays_s if first.too_slow else 0.0
    at_s = present.drain_s
    for each in visits:
        at_s += each.swap_s
        delay_s = max(DECIDE_WITHIN_S, work_s, min(longest_s, each.backlog.objective_s / 2))
        gain += each.saved(at_s + MARGIN_S, delay_s)
        at_s += each.backlog.work_s
    return gain


def _when_idle(present: Present, others: Sequence[Candidate]) -> Leave | None:
    """Return the model to serve while the present one has nothing to do; None if staying is worth more.

    It is that which gains most per second of its swap and its work.
    """
    chosen = _most_worth(present, others)
    if chosen is None or _gain_when_idle(present, chosen) < _missed_by(present, chosen):
        return None
    return Leave(model=chosen.model, why="the instance has nothing else to do")


def _most_worth(present: Present, others: Sequence[Candidate]) -> Candidate | None:
    def worth(each: Candidate) -> tuple[float, ModelId]:
        margin = _gain_when_idle(present, each) - _missed_by(present, each)
        return margin / max(each.away_s, 1e-3), each.model

    return max((each for each in others if each.waiting), key=worth, default=None)


def _gain_when_idle(present: Present, other: Candidate) -> float:
    """Return the objectives that a visit gains, with those of later ones if it spares them a start."""
    starts = other.swap_s > START_RETURNS * present.back_s
    return other.worth + (other.arrivals_rps * STARTED_S if starts else 0.0)


def _missed_by(present: Present, other: Candidate) -> float:
    """Return the expected arrivals that miss their objective by a visit: fewer, the longer none comes."""
    return present.coming_lost(other.away_s + present.back_s)


def _why_idle(present: Present, others: Sequence[Candidate]) -> str:
    """Return the comparison of costs by which an idle instance remains."""
    chosen = _most_worth(present, others)
    if chosen is None:
        return "nothing waits in its queue"
    return (
        f"idle for {present.idle_s:.2f} s: {chosen.model} would gain {_gain_when_idle(present, chosen):.2f} "
        f"objectives, {_missed_by(present, chosen):.2f} expected here would be missed"
    )

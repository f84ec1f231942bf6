"""When an instance leaves its model, and for which one. Pure; all times are seconds from now.

A visit is as long as the deadlines of the other models allow: each swap takes the instance from everybody.
The latest moment to leave is computed backward over the models that wait, so that an instance of three models
does not leave a whole visit too late. It leaves then if more requests are saved by it than lost.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from qlm.agents.core.scheduling.visits.backlog import DELAY_MAX_S
from qlm.agents.core.scheduling.visits.candidate import RESIDENCE_S, Candidate
from qlm.agents.core.scheduling.visits.idle import when_idle, why_idle
from qlm.agents.core.scheduling.visits.present import Present
from qlm.agents.core.scheduling.visits.remain import MARGIN_S, NEVER, Leave, Remain
from qlm.agents.core.scheduling.visits.starved import most_starved

DECIDE_WITHIN_S: Final = 2.0
"""Leaving is weighed when the latest moment is nearer than this."""

LEAST_VISIT_SWAPS: Final = 2.5
"""Least length of a visit with work, in swap times: swaps take at most 1 / 3.5 of the time, whatever waits.
Without it each model is urgent again after every swap, and nothing is served."""

DELAY_WORK_MAX_S: Final = 20.0
"""Longest work of the present model that a delay of the others is weighed with."""


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
    if (starved := most_starved(present, others)) is not None:
        return starved
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
    return when_idle(present, others) or replace(remain, why=why_idle(present, others))


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
        cost = present.cost_of_absence(away_s)
        gain = _gain(present, visits, away_s) - cost
        if not first.too_slow and _gained(present, visits) > cost:
            # The arrivals that an absence misses are missed by a later one, too: to wait spares none of them.
            gain += present.coming_lost(away_s)
        if gain > best_gain:
            best, best_gain = first, gain
    if best is None:
        return None
    return Leave(model=best.model, why=f"{best.model} would lose {best_gain:.1f} requests more than it costs")


def _gained(present: Present, visits: Sequence[Candidate]) -> float:
    """Return the requests that leaving now saves against never leaving."""
    gained, at_s = 0.0, present.drain_s
    for each in visits:
        at_s += each.swap_s
        gained += each.backlog.gained(at_s + MARGIN_S)
        at_s += each.backlog.work_s
    return gained


def _gain(present: Present, visits: Sequence[Candidate], away_s: float) -> float:
    """Return the requests that leaving now saves against leaving after some more of the present work.

    That is at the latest once what runs has ended: a longer delay is no alternative, and would count what
    waits as saved by an eviction that saves little.
    """
    work_s = min(present.backlog.work_s, DELAY_WORK_MAX_S)
    longest_s = min(DELAY_MAX_S, present.ends_s or DELAY_MAX_S)
    first = visits[0]
    resides = first.too_slow and not (present.awake_s < RESIDENCE_S and present.has_lasting(away_s))
    gain = first.arrivals_rps * first.stays_s if resides else 0.0
    at_s = present.drain_s
    for each in visits:
        at_s += each.swap_s
        delay_s = max(DECIDE_WITHIN_S, work_s, min(longest_s, each.backlog.objective_s / 2))
        gain += each.saved(at_s + MARGIN_S, delay_s)
        at_s += each.backlog.work_s
    return gain

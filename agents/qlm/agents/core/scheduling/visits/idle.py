"""Which model an instance without work leaves for, at once or once fewer requests of its own are expected."""

from collections.abc import Sequence
from typing import Final

from qlm.agents.core.scheduling.visits.candidate import Candidate
from qlm.agents.core.scheduling.visits.present import Present
from qlm.agents.core.scheduling.visits.remain import Leave

START_RETURNS: Final = 3.0
"""A swap that takes longer than so many returns to the present model loads another one from storage."""

STARTED_S: Final = 300.0
"""Time for which a start from storage pays: from then on swaps to that model are short, too."""


def when_idle(present: Present, others: Sequence[Candidate]) -> Leave | None:
    """Return the model to serve while the present one has nothing to do; None if staying is worth more.

    Of those that are worth a visit now, it is that which gains most per second of its swap and its work. What
    can wait is worth little then: one later visit serves it all, and takes as long.
    """
    worthy = [each for each in others if each.waiting and _margin_now(present, each) >= 0]
    if not worthy:
        return None
    chosen = max(worthy, key=lambda each: (_margin(present, each) / max(each.away_s, 1e-3), each.model))
    return Leave(model=chosen.model, why="the instance has nothing else to do")


def _margin(present: Present, other: Candidate) -> float:
    return other.worth + _spared(present, other) - _missed_by(present, other)


def _margin_now(present: Present, other: Candidate) -> float:
    return other.worth_now + _spared(present, other) - _missed_by(present, other)


def _spared(present: Present, other: Candidate) -> float:
    """Return the objectives of later arrivals that a start now gains, since they are spared it.

    Only of those that do not find the instance busy with the present model.
    """
    if other.swap_s <= START_RETURNS * present.back_s:
        return 0.0
    quick_rps = sum(rate_rps * present.idle_share(waits_s) for rate_rps, waits_s in other.quick)
    return quick_rps * STARTED_S


def _missed_by(present: Present, other: Candidate) -> float:
    """Return the expected arrivals that miss their objective by a visit: fewer, the longer none comes."""
    return present.coming_lost(other.away_s + present.back_s)


def why_idle(present: Present, others: Sequence[Candidate]) -> str:
    """Return the comparison of costs by which an idle instance remains."""
    waiting = [each for each in others if each.waiting]
    if not waiting:
        return "nothing waits in its queue"
    nearest = max(waiting, key=lambda each: (_margin_now(present, each), each.model))
    return (
        f"idle for {present.idle_s:.2f} s: {nearest.model} would gain "
        f"{nearest.worth_now + _spared(present, nearest):.2f} objectives, "
        f"{_missed_by(present, nearest):.2f} expected here would be missed"
    )

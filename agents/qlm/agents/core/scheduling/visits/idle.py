"""Which model an instance without work leaves for, at once or once fewer requests of its own are expected."""

from collections.abc import Sequence
from typing import Final

from qlm.agents.core.scheduling.visits.candidate import Candidate
from qlm.agents.core.scheduling.visits.present import Present
from qlm.agents.core.scheduling.visits.remain import Leave
from qlm.domain.ids import ModelId

START_RETURNS: Final = 3.0
"""A swap that takes longer than so many returns to the present model loads another one from storage."""

STARTED_S: Final = 300.0
"""Time for which a start from storage pays: from then on swaps to that model are short, too."""


def when_idle(present: Present, others: Sequence[Candidate]) -> Leave | None:
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
    """Return the objectives that a visit gains, with those of later ones if it spares them a start.

    Of these only the ones that do not find the instance busy with the present model.
    """
    if other.swap_s <= START_RETURNS * present.back_s:
        return other.worth
    quick_rps = sum(rate_rps * present.idle_share(waits_s) for rate_rps, waits_s in other.quick)
    return other.worth + quick_rps * STARTED_S


def _missed_by(present: Present, other: Candidate) -> float:
    """Return the expected arrivals that miss their objective by a visit: fewer, the longer none comes."""
    return present.coming_lost(other.away_s + present.back_s)


def why_idle(present: Present, others: Sequence[Candidate]) -> str:
    """Return the comparison of costs by which an idle instance remains."""
    chosen = _most_worth(present, others)
    if chosen is None:
        return "nothing waits in its queue"
    return (
        f"idle for {present.idle_s:.2f} s: {chosen.model} would gain {_gain_when_idle(present, chosen):.2f} "
        f"objectives, {_missed_by(present, chosen):.2f} expected here would be missed"
    )

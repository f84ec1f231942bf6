"""A model that waits is visited in bounded time, whatever its requests are worth.

Late and batch requests gain a visit once enough of them have waited for long enough. A few for a model that
is rarely asked for would wait for as long as the awake model is busy. Where many wait there is more work than
time: visits in turn would only take more of it, by their swaps and evictions.
"""

from collections.abc import Sequence
from typing import Final

from qlm.agents.core.scheduling.visits.candidate import Candidate
from qlm.agents.core.scheduling.visits.present import Present
from qlm.agents.core.scheduling.visits.remain import Leave

STARVED_PATIENCES: Final = 2.5
"""Patiences of batch work after which a model is visited in any case: 300 s by default, half of the time for
which OpenAI's clients wait."""

SWAPS_SHARE: Final = 0.2
"""Share of the time that the swaps of such visits take at most: with many or long ones all wait longer."""

FEW_WORK_S: Final = 30.0
"""Longest work of what waits for such a model: one short visit serves it all (decision 47)."""


def most_starved(present: Present, others: Sequence[Candidate]) -> Leave | None:
    """Return the model whose few requests have waited longest, if that is too long.

    Models of a lower priority than the present work wait on.
    """
    limit_s = max(present.starved_after_s, sum(each.swap_s + present.back_s for each in others) / SWAPS_SHARE)
    waiting = (
        each
        for each in others
        if each.waits_s >= limit_s
        and each.all_work_s <= FEW_WORK_S
        and (present.priority is None or each.priority <= present.priority)
    )
    longest = max(waiting, key=lambda each: (each.waits_s, each.model), default=None)
    if longest is None:
        return None
    return Leave(
        model=longest.model, why=f"requests for {longest.model} have waited for {longest.waits_s:.0f} s"
    )

"""Objectives as one deadline per token (smooth goodput, equations 1 to 4). Times are seconds from arrival."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qlm.domain.streaming.reader import Reader
from qlm.domain.streaming.timeline import LATE_S

NEVER_S = float("inf")


@dataclass(frozen=True, slots=True)
class TokenGaps:
    """First token within `ttft_s`, and each other within `tbt_s` after the one before it (equation 2)."""

    ttft_s: float
    tbt_s: float


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """The last token within `e2e_s` (equation 3)."""

    e2e_s: float


TokenDeadlines = TokenGaps | WholeAnswer | Reader
"""A reader's tokens are due at its pace, whenever the others came (equation 4)."""


def deadlines(objective: TokenDeadlines, times_s: Sequence[float]) -> Iterator[float]:
    """Yield the deadline of each token of an answer.

    Args:
        objective: The objective.
        times_s: Delivery of each token: a gap begins with the token before it.
    """
    for token in range(len(times_s)):
        match objective:
            case TokenGaps(ttft_s=ttft_s, tbt_s=tbt_s):
                yield times_s[token - 1] + tbt_s if token else ttft_s
            case WholeAnswer(e2e_s=e2e_s):
                yield e2e_s if token == len(times_s) - 1 else NEVER_S
            case Reader():
                yield objective.due_s(token)


def met(objective: TokenDeadlines, times_s: Sequence[float]) -> bool:
    """Return True if each token came by its deadline (equation 1), but for rounding.

    An answer without tokens met none.
    """
    due_s = deadlines(objective, times_s)
    return bool(times_s) and all(at_s <= by_s + LATE_S for at_s, by_s in zip(times_s, due_s, strict=True))


def idle_s(objective: TokenDeadlines, times_s: Sequence[float]) -> float:
    """Return the idle time of the user: the largest lateness of a token (equation 6)."""
    due_s = deadlines(objective, times_s)
    return max((0.0, *(at_s - by_s for at_s, by_s in zip(times_s, due_s, strict=True))))

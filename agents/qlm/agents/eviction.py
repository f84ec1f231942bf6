"""Which running requests make room when something more urgent waits (request eviction, QLM section 5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from qlm.agents.held import Held
from qlm.domain.sampling import Evictability

EVICTIONS_MAX: Final = 4
"""A request is evicted at most this often by one agent, so that it cannot be pushed around forever."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the engine has been going lately; zeros until something was seen.

    Attributes:
        token_s: Seconds per output token of one request.
        service_s: Seconds from submission to the end of a request.
    """

    token_s: float = 0.0
    service_s: float = 0.0

    def seen(self, *, tokens: int, elapsed_s: float, weight: float = 0.2) -> "Pace":
        """Blend in one finished generation by exponential smoothing."""
        per_token_s = elapsed_s / max(1, tokens)
        if not self.service_s:
            return Pace(per_token_s, elapsed_s)
        return Pace(
            self.token_s + weight * (per_token_s - self.token_s),
            self.service_s + weight * (elapsed_s - self.service_s),
        )


def must_make_room(running: Sequence[Held], *, deadline_ns: int | None, now_ns: int, pace: Pace) -> bool:
    """Whether waiting for a place to come free by itself would miss the deadline.

    The wait is bounded by the running request that is closest to its own token limit.
    """
    if deadline_ns is None or not running:
        return False
    left = min(held.request.sampling.max_tokens - len(held.output) for held in running)
    wait_s = max(0, left) * pace.token_s
    return now_ns + (wait_s + pace.service_s) * 1e9 > deadline_ns


def victims(running: Sequence[Held], *, head: tuple[int, float, int], count: int) -> list[Held]:
    """Choose up to `count` requests to evict for a head of urgency `head`, least urgent first.

    Only requests that are strictly less urgent by priority or deadline qualify, never pinned ones, and
    among equals the one with the least work to lose goes first.
    """
    able = [
        held
        for held in running
        if held.request.evictability is not Evictability.PINNED
        and held.evictions < EVICTIONS_MAX
        and held.urgency[:2] > head[:2]
    ]
    able.sort(key=lambda held: (-held.urgency[0], -held.urgency[1], held.tokens))
    return able[:count]

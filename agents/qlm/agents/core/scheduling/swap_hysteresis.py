"""Defers groups of other models soon after work for the awake one."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final

from qlm.agents.core.scheduling.visits.decision import LEAST_VISIT_SWAPS
from qlm.domain.group import Group
from qlm.domain.ids import ModelId
from qlm.domain.values import value

WAIT_SHARE: Final = 0.5
"""A group is deferred in favour of the awake model until this share of its target is left."""

SWAPS_THERE_AND_BACK: Final = 2
"""Model swaps until an instance is back at its present model. The controller plans with the same number."""

SWAP_SAFETY: Final = 1.25
"""Safety factor: start a swap this multiple of its duration before the deadline."""

STARVING_NS: Final = 120_000_000_000
"""Deferral of a group with a deadline that no swap can meet, if swaps are short enough."""


@value
class SwapHysteresis:
    """Defers groups of other models soon after SLO-bound work for the awake one.

    More SLO-bound work for the awake model would wait for two swaps. So a deferral may last as long as those:
    by the ski-rental rule it never costs more than twice what knowing the arrivals would.

    Attributes:
        model: The awake model.
        priority: Groups of a higher priority (a lower number) are not deferred.
        since_ns: Last start of SLO-bound work.
        idle_ns: Shortest deferral after that.
        awake_ns: When the awake model woke.
        swap_ns: Duration of the swap to each model; a deferral lasts at least `SWAPS_THERE_AND_BACK` of them.
        return_ns: Returns the duration of the swap back to the awake model after another one.
    """

    model: ModelId
    priority: int
    since_ns: int
    idle_ns: int
    awake_ns: int = 0
    swap_ns: Mapping[ModelId, int] = field(default_factory=dict)
    return_ns: Callable[[ModelId], int] = field(default=lambda other: 0, compare=False)

    def until_ns(self, group: Group, now_ns: int) -> int:
        """Return the end of the deferral of a group; in the past if it is not deferred.

        The deferral ends early enough for a swap that still meets the deadline. Work without a deadline
        gains nothing from an early end. Late work may be answers that their readers have begun to read: it
        waits for as long as a group that no swap can meet, and for as long after each swap.
        """
        if group.cls.model == self.model or group.cls.priority < self.priority:
            return 0
        swap_ns = self.swap_ns.get(group.cls.model, 0)
        free_ns = self.since_ns + max(self.idle_ns, SWAPS_THERE_AND_BACK * swap_ns)
        if group.head_arrival_ns is None:
            return free_ns
        if group.cls.late:
            since_ns = max(group.head_arrival_ns, self.awake_ns)
            return min(free_ns, since_ns + self._starving_ns(group.cls.model))
        if group.cls.due_ms is None:
            return free_ns
        deadline_ns = group.hopeful_deadline_ns(now_ns + swap_ns)
        if deadline_ns is None:
            return min(free_ns, group.head_arrival_ns + self._starving_ns(group.cls.model))
        lead_ns = round(max(WAIT_SHARE * group.cls.due_ms * 1e6, SWAP_SAFETY * swap_ns))
        return min(free_ns, deadline_ns - lead_ns)

    def _starving_ns(self, model: ModelId) -> int:
        """Return the longest deferral of a group that no swap can meet, and of late work.

        Its requests are late in any case. So they wait until the swap there and the one back take at most
        1 / (1 + `LEAST_VISIT_SWAPS`) of the time.
        """
        away_ns = self.swap_ns.get(model, 0) + self.return_ns(model)
        return max(STARVING_NS, round(LEAST_VISIT_SWAPS * away_ns))

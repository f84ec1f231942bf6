"""How long requests of a class have been too late without a pause: a burst, or overload (decision 52)."""

from typing import Final

from qlm.domain.group import RequestClass

OVERLOAD_RATIO: Final = 3.0
"""Lead of an overloaded class, in leads of one that is not: from half of the mean to one and a half."""


class DemotionRuns:
    """Runs of demotions by class. A run ends with a time without one that is as long as the objective."""

    def __init__(self) -> None:
        self._runs: dict[RequestClass, tuple[int, int]] = {}

    def demoted(self, cls: RequestClass, now_ns: int) -> None:
        """Note a demotion."""
        first_ns, last_ns = self._runs.get(cls, (now_ns, now_ns))
        self._runs[cls] = (first_ns if now_ns - last_ns <= _objective_ns(cls) else now_ns), now_ns

    def lead_ratio(self, cls: RequestClass, now_ns: int) -> float:
        """Return by what to multiply the lead of a class, that is the time before a deadline to start within.

        In a burst each request that can just be in time is worth a try. In overload each one waits until
        then, and most that start miss their deadline. Those that still have time go first, and most meet it.
        """
        first_ns, last_ns = self._runs.get(cls, (now_ns, now_ns))
        objective_ns = max(1, _objective_ns(cls))
        if now_ns - last_ns > objective_ns:
            return 1.0
        return 1.0 + (OVERLOAD_RATIO - 1.0) * min(1.0, (now_ns - first_ns) / objective_ns)


def _objective_ns(cls: RequestClass) -> int:
    return 0 if cls.due_ms is None else round(cls.due_ms * 1e6)

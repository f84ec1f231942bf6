"""Account of an instance's time: what each second of its accelerator went into.

An instance does one thing at a time. While generations run, the time counts as computed again until the
tokens that are computed a second time are paid for, and as useful otherwise. The sums add up to the time
observed, to the nanosecond. docs/monitoring.md has the rules, and what they leave out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from qlm.domain.ids import ModelId
from qlm.domain.values import value


class GpuUse(StrEnum):
    """Use of an instance's time."""

    USEFUL = "useful"
    """Prompts and answers are computed for the first time."""
    AGAIN = "again"
    """Tokens are computed that were computed before: their KV cache was dropped."""
    SWAP = "swap"
    """A model goes, and another one comes."""
    IDLE_AWAKE = "idle_awake"
    """Nothing runs, though requests for the awake model wait."""
    IDLE_LOADABLE = "idle_loadable"
    """Nothing runs, though requests wait for a model that the instance could load."""
    IDLE = "idle"
    """Nothing runs, and nothing waits that the instance could do."""
    DOWN = "down"
    """No engine is able to serve, and none is being loaded."""


BESIDE_WORK: Final = (GpuUse.IDLE_AWAKE, GpuUse.IDLE_LOADABLE)
"""Idle while work waits."""

RECENT_NS: Final = 500_000_000
"""Age of an observation up to which an instance that still does the same need not be observed again."""

_NOTHING_RUNS: Final = frozenset({*BESIDE_WORK, GpuUse.IDLE})


@value
class Activity:
    """Activity of an instance from one time on.

    Attributes:
        use: Its use; `USEFUL` while generations run, whatever they compute.
        model: The awake model, or the one that comes.
        waiting: Models that the instance could serve, with waiting requests, while it is idle.
        why: Why it is idle beside them.
    """

    use: GpuUse
    model: ModelId | None = None
    waiting: tuple[ModelId, ...] = ()
    why: str = ""

    @classmethod
    def idle(cls, model: ModelId, waiting: tuple[ModelId, ...], why: str = "") -> "Activity":
        """Return the activity of an instance on which nothing runs."""
        if not waiting:
            return cls(use=GpuUse.IDLE, model=model)
        use = GpuUse.IDLE_AWAKE if model in waiting else GpuUse.IDLE_LOADABLE
        return cls(use=use, model=model, waiting=waiting, why=why)


@dataclass(slots=True, kw_only=True)
class Interval:
    """Uninterrupted time of one use and one model.

    Attributes:
        began_ns: Its start.
        lasts_ns: Its length so far.
        activity: The activity; of several reasons, the one that stood longest.
        use: The use, with `AGAIN` apart from `USEFUL`.
        activity_ns: Time for which exactly this activity was observed.
        plan: Costs that the plan compared, from who knows it.
    """

    began_ns: int
    lasts_ns: int
    activity: Activity
    use: GpuUse
    activity_ns: int = 0
    plan: str = ""

    @property
    def ended_ns(self) -> int:
        """Its end."""
        return self.began_ns + self.lasts_ns


def _ignore(observed: object) -> None:
    """Record nothing."""


class GpuTime:
    """Time of one instance by use, from the first observation to the last.

    Args:
        on_interval: Receives each interval when it is over.
        on_idle: Receives each change of `idle`.

    Attributes:
        idle: Nothing ran at the last observation.
    """

    def __init__(
        self,
        on_interval: Callable[[Interval], None] = _ignore,
        on_idle: Callable[[bool], None] = _ignore,
    ) -> None:
        self.on_interval = on_interval
        self._on_idle: Final = on_idle
        self._ns = dict.fromkeys(GpuUse, 0)
        self._longest_ns = dict.fromkeys(GpuUse, 0)
        self._activity: Activity | None = None
        self._interval: Interval | None = None
        self._at_ns = 0
        self._again_ns = 0
        self.idle = False

    @property
    def ns(self) -> Mapping[GpuUse, int]:
        """Nanoseconds by use."""
        return self._ns

    @property
    def longest_ns(self) -> Mapping[GpuUse, int]:
        """Longest interval of each use, nanoseconds; the present one counts, too."""
        return self._longest_ns

    @property
    def total_ns(self) -> int:
        """All time observed."""
        return sum(self._ns.values())

    @property
    def present(self) -> Interval | None:
        """The interval that lasts."""
        return self._interval

    def observe(self, activity: Activity, now_ns: int) -> None:
        """Count the time since the last observation for the activity of then, and note the present one."""
        self._count(now_ns)
        if activity.use is not GpuUse.USEFUL:
            self._again_ns = 0
        self._activity, idle = activity, activity.use in _NOTHING_RUNS
        if idle is not self.idle:
            self.idle = idle
            self._on_idle(idle)

    def generates(self, model: ModelId | None, now_ns: int) -> bool:
        """Return whether generations of this model ran at the last observation, which is recent."""
        before = self._activity
        return (
            before is not None
            and before.use is GpuUse.USEFUL
            and before.model == model
            and now_ns - self._at_ns < RECENT_NS
        )

    def repeats(self, lasts_ns: int, now_ns: int) -> None:
        """Count the time of running generations from now on as computed again."""
        if lasts_ns:
            self._count(now_ns)
            self._again_ns += lasts_ns

    def spared(self, lasts_ns: int, now_ns: int) -> None:
        """Take back what `repeats` announced, since it was not computed, as far as it is not counted yet."""
        if lasts_ns:
            self._count(now_ns)
            self._again_ns = max(0, self._again_ns - lasts_ns)

    def pause(self) -> None:
        """Count nothing until the next observation."""
        self._activity = None
        self.close()

    def close(self) -> None:
        """Report the present interval; the account ends here."""
        if self._interval is not None:
            self.on_interval(self._interval)
        self._interval = None

    def _count(self, now_ns: int) -> None:
        """Count the time since the last observation for the activity of then."""
        before, since_ns = self._activity, self._at_ns
        self._at_ns = now_ns
        # A clock that was set back must not reduce a sum.
        if before is None or now_ns <= since_ns:
            return
        elapsed_ns, again_ns = now_ns - since_ns, 0
        if self._again_ns and before.use is GpuUse.USEFUL:
            again_ns = min(self._again_ns, elapsed_ns)
            self._again_ns -= again_ns
            self._spend(before, GpuUse.AGAIN, again_ns, since_ns)
        self._spend(before, before.use, elapsed_ns - again_ns, since_ns)

    def _spend(self, activity: Activity, use: GpuUse, lasts_ns: int, since_ns: int) -> None:
        if not lasts_ns:
            return
        self._ns[use] += lasts_ns
        present = self._interval
        if present is None or present.use is not use or present.activity.model != activity.model:
            self.close()
            began_ns = since_ns
            if use is GpuUse.USEFUL and present is not None:
                began_ns = max(began_ns, present.ended_ns)
            present = self._interval = Interval(began_ns=began_ns, lasts_ns=0, activity=activity, use=use)
        present.lasts_ns += lasts_ns
        if lasts_ns >= present.activity_ns:
            present.activity, present.activity_ns = activity, lasts_ns
        self._longest_ns[use] = max(self._longest_ns[use], present.lasts_ns)

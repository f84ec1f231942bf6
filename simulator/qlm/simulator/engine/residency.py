"""Residency of one model's weights, and the time of each move."""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.profile import Profile

_NS_PER_S: Final = 1_000_000_000


class Residency(StrEnum):
    """State of a model's engine process."""

    COLD = "cold"
    """No process."""
    AWAKE = "awake"
    """Serving."""
    ASLEEP_WARM = "asleep_warm"
    """Sleep level 1: weights in host memory."""
    ASLEEP_EMPTY = "asleep_empty"
    """Sleep level 2: weights discarded; to be read from storage again."""
    FAILED = "failed"
    """The process has died."""


class ResidentEngine:
    """Engine process of one model. Each move takes effect at once and returns its duration.

    A driver makes a move, lets its duration pass, and then serves (or uses the freed memory). As in vLLM, a
    sleeping engine may load its weights first and get its KV cache later; it serves when it has both.
    """

    __slots__ = ("_in_page_cache", "_profile", "_weights_away", "state")

    def __init__(
        self,
        profile: Profile,
        state: Residency = Residency.AWAKE,
        *,
        in_page_cache: Callable[[], bool] = lambda: False,
    ) -> None:
        """Set the initial state.

        Args:
            profile: Source of durations.
            state: Initial state.
            in_page_cache: Returns whether the weights files are in host memory, so that a start or a reload
                does not wait for storage.
        """
        self._in_page_cache = in_page_cache
        self.state = state
        self._profile = profile
        self._weights_away = state is not Residency.AWAKE

    @property
    def sleep_level(self) -> int:
        """1 or 2 while asleep, else 0."""
        return {Residency.ASLEEP_WARM: 1, Residency.ASLEEP_EMPTY: 2}.get(self.state, 0)

    def start(self) -> int:
        """Start the process; return the duration, ns."""
        self._expect(Residency.COLD, Residency.FAILED)
        self.state, self._weights_away = Residency.AWAKE, False
        return _ns(self._profile.swap_cold_s - self._storage_saved_s())

    def sleep(self, level: int) -> int:
        """Free the accelerator, or change the sleep level, which takes no time.

        Args:
            level: 1 keeps the weights in host memory; 2 discards them.

        Returns:
            The duration, ns.
        """
        if level not in (1, 2):
            raise InvalidValueError("sleep.level", level, "1 or 2")
        self._expect(Residency.AWAKE, Residency.ASLEEP_WARM, Residency.ASLEEP_EMPTY)
        self.state = Residency.ASLEEP_WARM if level == 1 else Residency.ASLEEP_EMPTY
        if self._weights_away:
            return 0
        self._weights_away = True
        return _ns(self._profile.unload_s)

    def load_weights(self) -> int:
        """Load the weights of a sleeping engine, unless they are loaded; return the duration, ns."""
        self._expect(Residency.AWAKE, Residency.ASLEEP_WARM, Residency.ASLEEP_EMPTY)
        if not self._weights_away:
            return 0
        self._weights_away = False
        warm = self.state is Residency.ASLEEP_WARM
        if warm:
            return _ns(self._profile.swap_warm_s)
        return _ns(self._profile.swap_reload_s - self._storage_saved_s())

    def wake(self) -> int:
        """Load the weights and serve; return the duration, ns."""
        duration_ns = self.load_weights()
        self.state = Residency.AWAKE
        return duration_ns

    def fail(self) -> None:
        """Record the death of the process."""
        self._expect(Residency.AWAKE, Residency.ASLEEP_WARM, Residency.ASLEEP_EMPTY)
        self.state, self._weights_away = Residency.FAILED, True

    def _storage_saved_s(self) -> float:
        """Time saved by a start or reload whose files are in host memory: such a reload is a wake."""
        if not self._in_page_cache():
            return 0.0
        return max(0.0, self._profile.swap_reload_s - self._profile.swap_warm_s)

    def _expect(self, *states: Residency) -> None:
        if self.state not in states:
            raise InvalidValueError("residency", str(self.state), " or ".join(states))


def _ns(seconds: float) -> int:
    return round(seconds * _NS_PER_S)

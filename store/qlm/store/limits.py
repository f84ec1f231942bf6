"""Limits of the shared state, each named."""

from dataclasses import dataclass
from typing import Final

from qlm.domain.errors import InvalidValueError

UNTOLD_AHEAD: Final = 256
"""A new request beyond so many on the virtual queue of an instance is not told to it at once.

They fill the batch of an engine (vLLM's default is 256), and the queue is read twice a second anyhow
(`agents.interpreter`). Of a long queue, being told of every request would be most of what an agent does.
"""


KEPT_PLAN_S: Final = 3600
"""Seconds that the latest plan is kept in Redis: one that old tells nothing but that nobody plans."""

KEPT_SIGNAL_S: Final = 60
"""Likewise for the latest forecast for admission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """How much the shared state keeps.

    Attributes:
        result_ttl_s: Seconds that the record and output of an ended request are kept.
        results_max: Ended requests kept at most; the oldest ended go first, an unfinished one never.
        events_max: Events kept per request; the oldest go first.
        backlog_max: Announcements that a slow reader of an in-process subscription may leave unread;
            beyond it the backlog is dropped, and the reader told as after a reconnect.
        lengths_window: Answers of a class after which its lengths before the last so many are forgotten.
    """

    result_ttl_s: float = 24 * 3600.0
    results_max: int = 100_000
    events_max: int = 32
    backlog_max: int = 10_000
    lengths_window: int = 2_000

    def __post_init__(self) -> None:
        if self.result_ttl_s <= 0:
            raise InvalidValueError("store.result_ttl_s", self.result_ttl_s, "a positive number of seconds")
        for name in ("results_max", "events_max", "backlog_max", "lengths_window"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"store.{name}", getattr(self, name), "at least 1")

    @property
    def result_ttl_ns(self) -> int:
        """`result_ttl_s` in nanoseconds."""
        return round(self.result_ttl_s * 1e9)

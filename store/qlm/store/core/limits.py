"""Limits of the shared state."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.ports.published import PublishedKind

# These requests fill the batch of an engine (vLLM's default is 256), and an agent reads its queue twice a
# second in any case (`agents.shell.runner`). With a notice for every request of a long queue, notices would
# be most of an agent's work.
NOTIFY_WITHIN: Final = 256
"""An instance is notified at once of a new request among the first this many of its virtual queue."""

LIFETIMES_S: Final[Mapping[PublishedKind, int]] = MappingProxyType(
    {
        # An older plan shows only that no controller plans.
        PublishedKind.PLAN: 3600,
        PublishedKind.SIGNAL: 60,
        PublishedKind.CLUSTERS: 7 * 86_400,
        # Nothing older counts.
        PublishedKind.HISTORY: 30 * 86_400,
    }
)
"""Lifetime in Redis of what a controller has published and does not renew, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Retention limits of the shared state.

    Attributes:
        result_ttl_s: Lifetime of the record and output of an ended request, seconds.
        results_max: Ended requests kept; the oldest are dropped first, unfinished ones never.
        events_max: Events kept per request; the oldest are dropped first.
        backlog_max: Unread announcements of an in-process subscription; beyond it the backlog is dropped, and
            the reader is notified as after a reconnect.
        lengths_window: Answers per window of a class's length histogram, which covers one to two windows.
        events_waiting_max: Events in the outbox; beyond it, new ones are dropped.
    """

    result_ttl_s: float = 24 * 3600.0
    results_max: int = 100_000
    events_max: int = 32
    backlog_max: int = 10_000
    lengths_window: int = 2_000
    events_waiting_max: int = 100_000

    def __post_init__(self) -> None:
        if self.result_ttl_s <= 0:
            raise InvalidValueError("store.result_ttl_s", self.result_ttl_s, "a positive number of seconds")
        for name in ("results_max", "events_max", "backlog_max", "lengths_window", "events_waiting_max"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"store.{name}", getattr(self, name), "at least 1")

    @property
    def result_ttl_ns(self) -> int:
        """`result_ttl_s` in nanoseconds."""
        return round(self.result_ttl_s * 1e9)

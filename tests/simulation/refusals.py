"""States of a store that answers reads and refuses writes."""

from dataclasses import dataclass
from typing import Final

_READS: Final = frozenset(
    {
        "incarnation",
        "warnings",
        "indexed",
        "record",
        "records",
        "queue_position",
        "waiting",
        "read_output",
        "virtual_queue",
        "unplaced",
        "leader",
        "published",
    }
)
_FREEING: Final = frozenset({"unwatch", "leave", "resign", "view"})
"""Operations that only delete, or write only to delete: Redis carries them out without memory."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One such state.

    Attributes:
        text: The server's error.
        allowed: Operations that it carries out.
    """

    text: str
    allowed: frozenset[str]

    def refuses(self, operation: str) -> bool:
        """Return whether the server refuses an operation."""
        return operation not in self.allowed


MISCONF: Final = Refusal("MISCONF Redis is configured to save RDB snapshots, but cannot persist", _READS)
NOREPLICAS: Final = Refusal("NOREPLICAS Not enough good replicas to write", _READS)
OUT_OF_MEMORY: Final = Refusal("OOM command not allowed when used memory > 'maxmemory'", _READS | _FREEING)

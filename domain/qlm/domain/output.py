"""Entries of the output log: the append-only truth about what a request has generated.

Nothing reaches a client before it is in the log, and an entry is taken only if it starts where the
log ends: so no token is ever shown twice or skipped, whoever generates it.
"""

from enum import StrEnum
from typing import NamedTuple

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import RequestId, TokenIds
from qlm.domain.lease import Epoch
from qlm.domain.outcome import Outcome
from qlm.domain.values import value


@value
class LogEntry:
    """One append to the output log of one request.

    Attributes:
        id: The request.
        epoch: Lease under which the tokens were generated.
        offset: Output tokens before this entry; must equal the log's length.
        token_ids: New tokens; may be empty if only the outcome is new.
        outcome: Given with the last entry: the request has ended.
        detail: Why, when the outcome is an error.
    """

    id: RequestId
    epoch: Epoch
    offset: int
    token_ids: TokenIds = ()
    outcome: Outcome | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        if self.offset < 0:
            raise InvalidValueError("log_entry.offset", self.offset, "0 or more")


class AppendResult(StrEnum):
    """What became of a log entry."""

    TAKEN = "taken"
    STALE = "stale"
    """The lease is not the current one: someone else may be running the request."""
    GAP = "gap"
    """The offset is not the log's length."""
    ENDED = "ended"
    """The request has already ended (cancelled, say)."""
    UNKNOWN = "unknown"
    """The store knows no such request, or no epoch so old (it was emptied): register it again."""


class OutputSlice(NamedTuple):
    """Part of an output log.

    Attributes:
        id: The request.
        offset: Output tokens before `token_ids`.
        token_ids: The log from `offset` to its end.
        outcome: Set once the request has ended and `token_ids` reaches the end.
        detail: Why, when the outcome is an error.
    """

    id: RequestId
    offset: int
    token_ids: TokenIds = ()
    outcome: Outcome | None = None
    detail: str = ""

    @property
    def end(self) -> int:
        """Offset after the last token of the slice."""
        return self.offset + len(self.token_ids)

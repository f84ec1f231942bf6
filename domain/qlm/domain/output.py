"""Output log: append-only record of the tokens of a request.

Clients receive only tokens that are in the log. An entry is accepted only if it starts where the log
ends, so no token is duplicated or skipped, whichever agent generates it.
"""

from enum import StrEnum
from typing import NamedTuple

from qlm.domain.errors import InvalidValueError
from qlm.domain.formats.extensions import NO_LOG_EXTENSIONS, LogExtensions, check_size
from qlm.domain.ids import RequestId, TokenIds
from qlm.domain.lease import Epoch
from qlm.domain.outcome import Outcome
from qlm.domain.values import value


@value
class LogEntry:
    """One append to the output log of one request.

    Attributes:
        id: The request.
        epoch: Epoch of the lease under which the tokens were generated.
        offset: Output tokens before this entry; must equal the log's length.
        token_ids: New tokens; may be empty if only the outcome is new.
        outcome: Outcome of the request, in its last entry only.
        detail: Reason of an error.
        extensions: Optional fields of the log, from this entry on.
    """

    id: RequestId
    epoch: Epoch
    offset: int
    token_ids: TokenIds = ()
    outcome: Outcome | None = None
    detail: str = ""
    extensions: LogExtensions = NO_LOG_EXTENSIONS

    def __post_init__(self) -> None:
        if self.offset < 0:
            raise InvalidValueError("log_entry.offset", self.offset, "0 or more")
        if self.extensions is not NO_LOG_EXTENSIONS:
            check_size(self.extensions)


class AppendResult(StrEnum):
    """Result of appending a log entry."""

    TAKEN = "taken"
    STALE = "stale"
    """The lease is not the current one: another agent may be running the request."""
    GAP = "gap"
    """The offset is not the log's length."""
    ENDED = "ended"
    """The request has already ended (cancelled, say)."""
    UNKNOWN = "unknown"
    """The store does not know the request, or knows it anew after it lost it: index it again."""


class OutputSlice(NamedTuple):
    """Part of an output log.

    Attributes:
        id: The request.
        offset: Output tokens before `token_ids`.
        token_ids: The log from `offset` to its end.
        outcome: Set once the request has ended and `token_ids` reaches the end.
        detail: Reason of an error.
        fingerprint: That of the request if the slice was read, for a comparison; empty if it was announced,
            since a request is announced only to those who were compared when they watched it.
        extensions: Optional fields of the log if the slice was read; if it was announced, those of its last
            entry.
    """

    id: RequestId
    offset: int
    token_ids: TokenIds = ()
    outcome: Outcome | None = None
    detail: str = ""
    fingerprint: str = ""
    extensions: LogExtensions = NO_LOG_EXTENSIONS

    @property
    def end(self) -> int:
        """Offset after the last token of the slice."""
        return self.offset + len(self.token_ids)

"""Dead letters."""

from collections.abc import Sequence
from typing import Literal, TypedDict


class DeadRequest(TypedDict):
    """The request in a dead letter."""

    id: str  # Its id
    model: str  # The model it names
    slo_class: str  # Label of its objective
    priority: int  # Its priority
    tenant: str  # The tenant that sent it
    queue: str  # The queue of its class
    arrival_s: float  # When it was accepted, seconds since the epoch
    deadline_s: float | None  # Deadline of its objective; null without one
    prompt_tokens: int  # Length of its prompt


class DeadLetterFields(TypedDict):
    """A message that could not be decoded."""

    id: str  # Digest of its bytes: the same on every gateway
    reason: str  # Why it could not be processed
    at_s: float | None  # Time at which it became a dead letter, seconds since the epoch; null if unknown
    queue: str | None  # Its original queue; null if unknown
    bytes: int  # Its size
    unreadable: str | None  # Why its request cannot be decoded; null if it can
    request: DeadRequest | None  # Its request; null if it cannot be decoded


class DeadLetters(TypedDict):
    """Dead letters."""

    letters: Sequence[DeadLetterFields]  # Newest first
    total: int  # Number of dead letters


class ResolvedLetterFields(TypedDict):
    """A letter that was requeued or deleted."""

    id: str  # Its id
    request: str | None  # The id of its request; null if it cannot be decoded
    # `queued`: its request waits again; `removed`: that runs or has ended, only the letter is gone;
    # `deleted`: the message is gone for good.
    result: Literal["queued", "removed", "deleted"]
    why: str | None  # Reason; null without one


class ResolvedLetters(TypedDict):
    """Letters that were requeued or deleted."""

    settled: Sequence[ResolvedLetterFields]  # Each letter of that id, or of the request of that id


class ResolvedCounts(TypedDict):
    """Numbers of letters that were requeued or deleted."""

    queued: int  # Letters whose requests wait again
    removed: int  # Letters whose requests run or have ended; only the letters are gone
    deleted: int  # Letters whose messages are gone for good
    left: int  # Letters that remain

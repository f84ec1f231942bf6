"""Dead letters."""

from collections.abc import Sequence
from typing import Literal, TypedDict


class DeadRequest(TypedDict):
    """The request in a dead letter.

    Attributes:
        id: Its id.
        model: The model it names.
        slo_class: Label of its objective.
        priority: Its priority.
        tenant: Who sent it.
        queue: The queue of its class.
        arrival_s: When it was accepted, seconds since the epoch.
        deadline_s: The moment that its objective is about; null if it has none.
        prompt_tokens: Length of its prompt.
    """

    id: str
    model: str
    slo_class: str
    priority: int
    tenant: str
    queue: str
    arrival_s: float
    deadline_s: float | None
    prompt_tokens: int


class DeadLetter(TypedDict):
    """A message that nobody could serve.

    Attributes:
        id: Made of its bytes, the same on every gateway.
        reason: Why nobody could serve it.
        at_s: Since when it is here, seconds since the epoch; null if that cannot be read.
        queue: Where it was found; null likewise.
        bytes: Its size.
        unreadable: Why its request cannot be read here; null if it can.
        request: Its request; null if it cannot be read.
    """

    id: str
    reason: str
    at_s: float | None
    queue: str | None
    bytes: int
    unreadable: str | None
    request: DeadRequest | None


class DeadLetters(TypedDict):
    """Dead letters.

    Attributes:
        letters: Newest first.
        total: How many there are.
    """

    letters: Sequence[DeadLetter]
    total: int


class SettledLetter(TypedDict):
    """What became of a letter.

    Attributes:
        id: Its id.
        request: The id of its request; null if that cannot be read.
        result: `queued`: its request waits again; `removed`: that runs or has ended, only the letter is gone;
            `deleted`: the message is gone for good.
        why: In a sentence; null if there is no more to say.
    """

    id: str
    request: str | None
    result: Literal["queued", "removed", "deleted"]
    why: str | None


class SettledLetters(TypedDict):
    """What became of letters.

    Attributes:
        settled: Each letter of that id, or of the request of that id.
    """

    settled: Sequence[SettledLetter]


class SettledCounts(TypedDict):
    """What became of letters, in numbers.

    Attributes:
        queued: Their requests wait again.
        removed: Their requests run or have ended; only the letters are gone.
        deleted: The messages are gone for good.
        left: Letters that are still there.
    """

    queued: int
    removed: int
    deleted: int
    left: int

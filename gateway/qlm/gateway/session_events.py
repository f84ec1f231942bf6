"""What happens to a session, and what it asks for in answer: plain values."""

from dataclasses import dataclass

from qlm.domain.ids import TokenIds
from qlm.domain.outcome import Outcome
from qlm.domain.output import OutputSlice


@dataclass(frozen=True, slots=True)
class Heard:
    """The store announced output; announcements may repeat, overlap or skip."""

    slice: OutputSlice
    now_ns: int


@dataclass(frozen=True, slots=True)
class Read:
    """The answer to AskOutput: the log from the offset asked; None if the store does not know the request.

    Attributes:
        slice: The log.
        now_ns: The present.
        lost: The store would know the request if its message were in the queue.
    """

    slice: OutputSlice | None
    now_ns: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """The store could not be asked."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class Resync:
    """Announcements may have been missed: the connection to the store was lost, or the store restarted."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; due at the session's `wake_ns`."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The client closed its connection, or it broke."""

    now_ns: int


Event = Heard | Read | ReadFailed | Resync | Tick | ClientGone


@dataclass(frozen=True, slots=True)
class SendEvent:
    """Send further text; the client has then been shown `offset` output tokens.

    Attributes:
        offset: Output tokens shown with it.
        text: What is new.
        token_ids: The tokens since the event before, up to `offset`.
    """

    offset: int
    text: str
    token_ids: TokenIds = ()


@dataclass(frozen=True, slots=True)
class SendKeepAlive:
    """Send a comment, so that nothing on the way takes the connection for dead."""


@dataclass(frozen=True, slots=True)
class SendFinal:
    """The answer is over; the session, too.

    Attributes:
        offset: Output tokens of the answer (`completion_tokens`).
        text: What has not been sent before; for an answer that is not streamed, all of it.
        finish_reason: `stop` or `length`; None if it ended badly.
        outcome: How it ended.
        detail: Why, if it ended badly.
        token_ids: Tokens of the answer that have not been sent before.
    """

    offset: int
    text: str
    finish_reason: str | None
    outcome: Outcome
    detail: str = ""
    token_ids: TokenIds = ()


@dataclass(frozen=True, slots=True)
class AskOutput:
    """Read the output log from an offset on; answer with Read or ReadFailed."""

    offset: int


@dataclass(frozen=True, slots=True)
class AskStop:
    """A stop string has appeared: end the generation, its further tokens are not wanted."""


@dataclass(frozen=True, slots=True)
class AskCancel:
    """End the request, unless somebody else watches it. The session is over."""

    outcome: Outcome


Action = SendEvent | SendKeepAlive | SendFinal | AskOutput | AskStop | AskCancel

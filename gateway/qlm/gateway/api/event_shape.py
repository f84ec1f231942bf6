"""What sinks of streams need of an API: the bytes of its events."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from qlm.domain.attainment import UNDECIDED, Attainment
from qlm.domain.request import RequestMetadata
from qlm.gateway.api.errors import ApiError
from qlm.gateway.core.session_events import SendFinal

Logprobs = Mapping[str, object] | None
"""Log probabilities of the tokens of an event in the client's form; None if it did not ask for them."""


class Scored(NamedTuple):
    """Log probabilities of a whole answer in the client's form; each is None if it did not ask for them.

    Attributes:
        answer: Those of the answer's tokens.
        prompt: Those of the prompt's.
    """

    answer: Logprobs
    prompt: Sequence[Mapping[str, object] | None] | None = None


NOT_SCORED: Final = Scored(None)


class EventShape(Protocol):
    """Formats the events of one stream; each method may return nothing."""

    def role(self) -> bytes:
        """Return what comes before the first text."""
        ...

    def text(self, offset: int, text: str, logprobs: Logprobs = None) -> bytes:
        """Return an event with text, behind which the client has `offset` output tokens."""
        ...

    def ending(self, final: SendFinal, logprobs: Logprobs = None) -> bytes:
        """Return the last events of a stream that ended well."""
        ...

    def delta(self, offset: int, fields: Mapping[str, object], logprobs: Logprobs = None) -> bytes:
        """Return the events of a derendered delta."""
        ...

    def derendered_end(
        self,
        final: SendFinal,
        fields: Mapping[str, object],
        finish_reason: str | None,
        logprobs: Logprobs = None,
    ) -> bytes:
        """Return the last events of a derendered answer that ended well, with its last delta."""
        ...

    def error(self, offset: int, error: ApiError, attainment: Attainment = UNDECIDED) -> bytes:
        """Return the last events of a stream that ended badly."""
        ...

    def keep_alive(self) -> bytes:
        """Return what shows that the connection is alive."""
        ...


class FamilyEnd:
    """The ends of the answers of one stream, which it ends together.

    Attributes:
        answers: Those that have ended well.
        failed: Number of the first that has ended badly, and with it the stream; None before.
    """

    def __init__(self) -> None:
        self.answers: list[tuple[RequestMetadata, SendFinal]] = []
        self.failed: int | None = None

    def ended(self, metadata: RequestMetadata, final: SendFinal) -> None:
        """Note the end of an answer."""
        self.answers.append((metadata, final))

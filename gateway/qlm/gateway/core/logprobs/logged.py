"""Log probabilities in an output log: those of the answer's tokens, and of the prompt."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from qlm.domain.formats.token_logprobs import (
    LogprobLog,
    Piece,
    TokenLogprob,
    check_prompt,
    decoded,
    unpack_prompt,
)
from qlm.domain.request import RequestMetadata


class PromptLogprobs(NamedTuple):
    """Log probabilities of a prompt, packed: unpacking those of a long one takes some 10 ms.

    Attributes:
        packed: As in the output log; empty if they are not known or not asked for.
        top: Candidates besides the token itself.
    """

    packed: bytes = b""
    top: int = 0

    def tokens(self) -> Sequence[tuple[int, TokenLogprob]]:
        """Return its tokens, each with its log probabilities."""
        return unpack_prompt(self.packed, self.top)

    @property
    def is_long(self) -> bool:
        """True if it should be shown in a thread."""
        return len(self.packed) > _LONG_BYTES


NOT_KNOWN: Final = PromptLogprobs()
_LONG_BYTES: Final = 24_000


class LoggedLogprobs:
    """Takes the pieces of an output log, in any order."""

    __slots__ = ("_answer", "_prompt", "_prompt_top")

    def __init__(self, metadata: RequestMetadata) -> None:
        """Begin with the empty log of a request."""
        asked = metadata.extensions
        self._answer = None if asked.logprobs is None else LogprobLog(asked.logprobs)
        self._prompt_top = asked.prompt_logprobs
        self._prompt = NOT_KNOWN

    def put(self, pieces: Iterable[Piece]) -> None:
        """Add pieces; of those that overlap, the last counts."""
        for offset, packed in map(decoded, pieces):
            if offset >= 0 and self._answer is not None:
                self._answer.put(offset, packed)
            elif offset < 0 and self._prompt_top is not None:
                check_prompt(packed, self._prompt_top)
                self._prompt = PromptLogprobs(packed, self._prompt_top)

    def answer(self, since: int, end: int) -> Sequence[TokenLogprob]:
        """Return those of output tokens from `since` up to `end`; none if they were not asked for."""
        return () if self._answer is None else self._answer.tokens(since, end)

    def prompt(self, since: int) -> PromptLogprobs:
        """Return those of the prompt for what begins at output token `since`: only the first has them."""
        return NOT_KNOWN if since else self._prompt


def logged_logprobs(metadata: RequestMetadata) -> LoggedLogprobs | None:
    """Begin the log probabilities of a request; None if it did not ask for any."""
    asked = metadata.extensions
    return None if asked.logprobs is None and asked.prompt_logprobs is None else LoggedLogprobs(metadata)

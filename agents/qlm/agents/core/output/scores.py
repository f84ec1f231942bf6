"""Log probabilities of the tokens of a request, on their way from the engine to the output log."""

from collections.abc import Sequence

from qlm.domain.formats.extensions import RequestExtensions
from qlm.domain.formats.token_logprobs import LogprobLog, Piece, piece_of_prompt


class Scores:
    """Those that this agent's engines have reported of one request.

    Attributes:
        sent: Output tokens of which those were sent to the store; written by `output.log`.
        prompt: Those of the prompt, packed; None before, and if none are wanted.
    """

    __slots__ = ("_answer", "_top", "prompt", "sent")

    def __init__(self, top: int | None) -> None:
        """Begin without any; `top` candidates per output token are wanted, None for none."""
        self._top = top
        self._answer: LogprobLog | None = None
        self.sent = 0
        self.prompt: bytes | None = None

    def add(self, packed: bytes, before: int) -> None:
        """Add those of the next tokens of an output that has `before` tokens so far."""
        if self._answer is None and self._top is not None:
            self._answer = LogprobLog(self._top, start=before)
        if self._answer is not None:
            self._answer.put(self._answer.end, packed)

    def unsent(self, prompt_tokens: int, output_tokens: int) -> tuple[Piece, ...]:
        """Return what the log lacks; those of the prompt come with the first tokens.

        Of a log that the store has lost, all that was generated here is written again.
        """
        piece = None if self._answer is None else self._answer.piece(self.sent, output_tokens)
        pieces = () if piece is None else (piece,)
        if self.prompt is None or self.sent or not output_tokens:
            return pieces
        return (piece_of_prompt(prompt_tokens, self.prompt), *pieces)

    def unsend(self, written: Sequence[Piece], logged: int) -> None:
        """Note that a write with these pieces failed; `logged` output tokens are in the log."""
        self.sent = max(0, written[0][0]) if written else logged


def scores_of(extensions: RequestExtensions) -> Scores | None:
    """Begin the log probabilities of a request; None if it wants none."""
    if extensions.logprobs is None and extensions.prompt_logprobs is None:
        return None
    return Scores(extensions.logprobs)

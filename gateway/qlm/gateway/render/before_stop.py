"""The tokens of an answer before its stop text: all of it that a render tier may read."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from qlm.domain.ids import TokenIds
from qlm.domain.request import PROMPT_TAIL_TOKENS, RequestMetadata
from qlm.gateway.core.answer_text import answer_text
from qlm.gateway.core.tokenizer import Tokenizer

_HALF: Final = "\ufffd"
"""Text of a token that has only a part of a character."""


class BeforeStop:
    """Holds tokens back as long as their text may belong to a stop text.

    The tokens that are let through after n tokens depend on these n alone. A stop text that begins inside a
    token leaves the text before it in that token; `rest` has other tokens for that.

    Attributes:
        rest: Tokens for the text between the last token let through and the stop text; known after `end`.
    """

    def __init__(self, metadata: RequestMetadata, tokenizer: Tokenizer) -> None:
        """Begin an answer."""
        self.rest: TokenIds = ()
        self._metadata = metadata
        self._tokenizer = tokenizer
        self._text = answer_text(metadata, tokenizer)
        self._end = 0
        self._held: deque[tuple[int, int]] = deque()
        self._textless: list[int] = []
        self._let: deque[int] = deque(metadata.prompt_tail, PROMPT_TAIL_TOKENS)
        self._released = ""
        self._released_from = 0

    def take(self, ids: Sequence[int]) -> list[int]:
        """Take further tokens; return those that no stop text can concern any more."""
        for id in ids:
            if self._text.met:
                break
            self._released += self._text.feed((id,))
            end = self._released_from + len(self._released) + self._text.withheld
            self._textless.append(id)
            if (
                end > self._end
            ):  # tokens without text belong to what follows: it may be the rest of a character
                self._held.extend((each, end) for each in self._textless)
                self._textless, self._end = [], end
        return self._let_through()

    def end(self) -> list[int]:
        """Take the end of the answer; return the further tokens of it, without those of `rest`."""
        if not self._text.met:
            through = [each for each, _ in self._held] + self._textless
            self._held.clear()
            self._textless = []
            return through
        through = []
        while self._held and self._is_silent(self._held[0][0]):
            through.append(self._held.popleft()[0])
            self._let.append(through[-1])
        self.rest = self._tokens_of(self._released)
        return through

    def _let_through(self) -> list[int]:
        through, until = [], self._released_from + len(self._released)
        while self._held and self._held[0][1] <= until:
            id, end = self._held.popleft()
            through.append(id)
            self._released = self._released[end - self._released_from :]
            self._released_from = end
        self._let.extend(through)
        return through

    def _is_silent(self, id: int) -> bool:
        """Return whether a token has no text in the answer, and none that another one completes."""
        skips = self._metadata.answer.skip_special_tokens
        alone = self._tokenizer.detokenizer(tuple(self._let), skip_special_tokens=skips).feed((id,))
        return not alone and _HALF not in self._tokenizer.decode((id,))

    def _tokens_of(self, text: str) -> TokenIds:
        """Return tokens that have a text where the answer is; none if the tokenizer has none."""
        if not text:
            return ()
        skips, encode = self._metadata.answer.skip_special_tokens, self._tokenizer.encode
        line = encode("\n", add_special_tokens=False)
        # SentencePiece begins a text with a space; behind a line it is what follows the line.
        behind = encode("\n" + text, add_special_tokens=False)[len(line) :]
        for ids in (encode(text, add_special_tokens=False), behind):
            if self._tokenizer.detokenizer(tuple(self._let), skip_special_tokens=skips).feed(ids) == text:
                return ids
        return ()


def before_stop(metadata: RequestMetadata, tokenizer: Tokenizer, ids: TokenIds) -> TokenIds:
    """Return the tokens of a whole answer, if it met a stop text only those before that."""
    reader = BeforeStop(metadata, tokenizer)
    return (*reader.take(ids), *reader.end(), *reader.rest)

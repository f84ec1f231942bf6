"""Log probabilities of an answer in OpenAI's forms, as a function of its output log alone.

As in vLLM, each token has its text on its own. A token that ends within a character has no text; the one that
completes the character has all of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from qlm.domain.formats.token_logprobs import TokenLogprob
from qlm.domain.ids import TokenIds
from qlm.domain.request import AnswerKind, RequestMetadata
from qlm.gateway.core.tokenizer import Tokenizer

_CONTEXT_TOKENS: Final = 4
"""Tokens before one that may share its character: no character has more bytes in UTF-8."""

_LEAST: Final = -9999.0
"""Log probability of what is impossible or not known, as of OpenAI and vLLM."""

_INCOMPLETE: Final = "\ufffd"


class AnswerLogprobs:
    """Takes tokens of an answer from its beginning on, and returns what the client gets for them."""

    def __init__(self, tokenizer: Tokenizer, metadata: RequestMetadata) -> None:
        """Begin an answer to a request that asked for log probabilities."""
        top = metadata.extensions.logprobs
        assert top is not None
        self._tokenizer = tokenizer
        self._chat = metadata.answer.kind is AnswerKind.CHAT
        self._top = top
        self._before: TokenIds = ()
        self._characters = 0
        self.taken = 0

    def take(self, ids: TokenIds, logprobs: Sequence[TokenLogprob], *, skip: int = 0) -> dict[str, Any]:
        """Take the next tokens; return the value of the field `logprobs` for all but the first `skip`."""
        known = [self._position(id, each) for id, each in zip(ids, logprobs, strict=True)][skip:]
        self.taken += len(ids)
        if self._chat:
            return {"content": [_entry(*each) for each in known]}
        return {
            "text_offset": [offset for *_, offset in known],
            "token_logprobs": [None if own is None else _finite(own) for _, own, _, _ in known],
            "tokens": [text for text, *_ in known],
            "top_logprobs": [
                None if own is None else {text: _finite(value) for text, value in candidates}
                for _, own, candidates, _ in known
            ],
        }

    def _position(
        self, id: int, logprob: TokenLogprob
    ) -> tuple[str, float | None, Sequence[tuple[str, float]], int]:
        """Return text, log probability, candidates with their texts, and offset of the next token."""
        text, offset = self._text(id), self._characters
        candidates = [(self._text(each), value) for each, value in self._candidates(id, logprob)]
        self._before = (*self._before, id)[-_CONTEXT_TOKENS:]
        self._characters += len(text)
        return text, logprob.sampled, candidates, offset

    def _candidates(self, id: int, logprob: TokenLogprob) -> Sequence[tuple[int, float]]:
        """Return the sampled token and the others that are shown.

        A chat has `top`. A completion has `top - 1`, and the sampled token if it is not among them.
        """
        if logprob.sampled is None:
            return ()
        listed = ((id, logprob.sampled), *logprob.others)
        if self._chat:
            return listed[: self._top]
        asked = self._top - 1
        return listed[: asked if 0 < logprob.rank <= asked else asked + 1]

    def _text(self, id: int) -> str:
        text = self._tokenizer.token_text(id)
        return self._completed(id) if text.endswith(_INCOMPLETE) else text

    def _completed(self, id: int) -> str:
        """Return the text of a character that a token completes; nothing if it does not."""
        decode = self._tokenizer.decode
        for count in range(1, len(self._before) + 1):
            before = self._before[-count:]
            whole = decode((*before, id))
            if whole.endswith(_INCOMPLETE):
                continue
            while before and decode(before[-1:]).endswith(_INCOMPLETE):
                before = before[:-1]
            return whole[_common(decode(before) if before else "", whole) :]
        return ""


def answer_logprobs(metadata: RequestMetadata, tokenizer: Tokenizer) -> AnswerLogprobs | None:
    """Begin the log probabilities of the answer to a request; None if it did not ask for them."""
    return None if metadata.extensions.logprobs is None else AnswerLogprobs(tokenizer, metadata)


def _entry(
    text: str, own: float | None, candidates: Sequence[tuple[str, float]], offset: int
) -> Mapping[str, Any]:
    return {**_candidate(text, own), "top_logprobs": [_candidate(*each) for each in candidates]}


def _candidate(text: str, logprob: float | None) -> dict[str, Any]:
    encoded = list(text.encode(errors="replace"))
    return {"token": text, "logprob": _LEAST if logprob is None else _finite(logprob), "bytes": encoded}


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)


def _common(first: str, second: str) -> int:
    """Return the number of characters with which both texts begin."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))

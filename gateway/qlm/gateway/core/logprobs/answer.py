"""Log probabilities of an answer in OpenAI's forms, as a function of its output log alone."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from qlm.domain.formats.token_logprobs import TokenLogprob
from qlm.domain.ids import TokenIds
from qlm.domain.request import AnswerKind, RequestMetadata
from qlm.gateway.core.logprobs.logged import NOT_KNOWN, PromptLogprobs
from qlm.gateway.core.logprobs.token_texts import TokenTexts
from qlm.gateway.core.tokenizer import Tokenizer

_LEAST: Final = -9999.0
"""Log probability of what is impossible or not known, as of OpenAI and vLLM."""

_Position = tuple[str, float | None, Sequence[tuple[str, float]], int]
"""A token: its text, its log probability, candidates with their texts, and characters before it."""


class AnswerLogprobs:
    """Takes tokens of an answer from its beginning on, and returns what the client gets for them."""

    def __init__(self, tokenizer: Tokenizer, metadata: RequestMetadata) -> None:
        """Begin an answer to a request that asked for log probabilities."""
        top = metadata.extensions.logprobs
        assert top is not None
        self._texts = TokenTexts(tokenizer)
        self._chat = metadata.answer.kind is AnswerKind.CHAT
        self._top = top
        self._prompt_top = metadata.extensions.prompt_logprobs or 0
        self._prompt_tokens = metadata.prompt_tokens
        self._echo = metadata.answer.echo_text
        self._characters = 0
        self.taken = 0

    def take(
        self,
        ids: TokenIds,
        logprobs: Sequence[TokenLogprob],
        *,
        prompt: PromptLogprobs = NOT_KNOWN,
        skip: int = 0,
    ) -> dict[str, Any]:
        """Take the next tokens; return the value of the field `logprobs` for all but the first `skip`.

        With the first tokens of an answer that repeats its prompt, it begins with the tokens of that.
        """
        before = [] if self.taken or not self._echo else self._repeated(prompt)
        known = [self._position(id, each) for id, each in zip(ids, logprobs, strict=True)][skip:]
        known = known if skip else before + known
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

    def _repeated(self, prompt: PromptLogprobs) -> list[_Position]:
        """Return the tokens of the prompt; if they are not known, the first one has all of the text."""
        if prompt.packed:
            return [self._position(id, each, self._prompt_top) for id, each in prompt.tokens()]
        self._characters = len(self._echo)
        rest = [("", None, (), self._characters)] * (self._prompt_tokens - 1)
        return [(self._echo, None, (), 0), *rest]

    def _position(self, id: int, logprob: TokenLogprob, asked: int | None = None) -> _Position:
        """Return the next token; `asked` candidates of it were, if not as many as of the answer's."""
        text, offset = self._texts.text(id), self._characters
        candidates = [(self._texts.text(each), value) for each, value in self._candidates(id, logprob, asked)]
        self._texts.took(id)
        self._characters += len(text)
        return text, logprob.sampled, candidates, offset

    def _candidates(self, id: int, logprob: TokenLogprob, asked: int | None) -> Sequence[tuple[int, float]]:
        """Return the sampled token and the others that are shown.

        A chat has `top`. A completion has `top - 1`, and the sampled token if it is not among them.
        """
        if logprob.sampled is None:
            return ()
        listed = ((id, logprob.sampled), *logprob.others)
        if self._chat:
            return listed[: self._top]
        asked = self._top - 1 if asked is None else asked
        return listed[: asked if 0 < logprob.rank <= asked else asked + 1][: self._top]


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

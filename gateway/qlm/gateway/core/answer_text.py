"""The text of an answer as a function of its token ids: detokenizing, stop tokens, stop strings.

Streams, plain answers, resumed streams and answers rendered later from the log all use it, so they agree in
every letter and on the end of the answer.
"""

from collections.abc import Sequence

from qlm.domain.outcome import Outcome
from qlm.domain.request import RequestMetadata
from qlm.gateway.core.tokenizer import Detokenizer, Tokenizer


class AnswerText:
    """Incremental detokenizer with stop-string matching; buffers text that may be the start of a stop string.

    As in vLLM, the stop string that is complete first ends the text (on a tie, the first listed). One that
    is complete within the first `min_tokens` tokens does not count. Tokens that end an answer count as
    output but have no text.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        end_ids: frozenset[int] = frozenset(),
        named_ids: frozenset[int] = frozenset(),
    ) -> None:
        """Begin an answer.

        Args:
            detokenizer: Primed with the prompt's tail.
            stop: Stop strings.
            include_stop: Keep the stop string, and the text of tokens that end an answer.
            min_tokens: Output tokens before which no stop string counts.
            end_ids: Tokens that end an answer.
            named_ids: Those of them that are a reason to name (`stop_reason`).
        """
        self._detokenizer = detokenizer
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._silent_ids = frozenset() if include_stop else end_ids
        self._named_ids = named_ids
        self._buffered = ""
        self._tokens = 0
        self._last_id = -1
        self._stop_met: str | None = None
        self._cut_off = 0

    @property
    def tokens(self) -> int:
        """Output tokens of the answer so far; those after the stop string are not part of it."""
        return self._tokens

    @property
    def met(self) -> bool:
        """A stop string has appeared: the answer is complete."""
        return self._stop_met is not None

    @property
    def withheld(self) -> int:
        """Characters of the tokens so far that are not in the text: they may begin a stop string, or do."""
        return len(self._buffered) + self._cut_off

    @property
    def stop_reason(self) -> int | str | None:
        """The stop string that has appeared, or the last token if it is a reason to name."""
        return (
            self._last_id if self._stop_met is None and self._last_id in self._named_ids else self._stop_met
        )

    def feed(self, ids: Sequence[int]) -> str:
        """Take further tokens, ignored after `met`; return the text that no later token can change."""
        if self._stop:
            return "".join([self._feed_one(id) for id in ids if self._stop_met is None])
        self._tokens += len(ids)
        if ids:
            self._last_id = ids[-1]
        silent = self._silent_ids
        return self._detokenizer.feed([id for id in ids if id not in silent] if silent else ids)

    def finish(self) -> str:
        """Return the buffered text: no further token will come."""
        rest, self._buffered = self._buffered, ""
        return rest

    def _feed_one(self, id: int) -> str:
        self._tokens += 1
        self._last_id = id
        added = "" if id in self._silent_ids else self._detokenizer.feed((id,))
        if not added:
            return ""
        text = self._buffered + added
        cut = self._cut(text, len(self._buffered)) if self._tokens > self._min_tokens else None
        if cut is not None:
            self._stop_met = cut[1]
            self._buffered = ""
            self._cut_off = len(text) - cut[0]
            return text[: cut[0]]
        released = len(text) - _possible_start(text, self._stop)
        self._buffered = text[released:]
        return text[:released]

    def _cut(self, text: str, seen: int) -> tuple[int, str] | None:
        """Return the end of the answer in `text` and the stop string complete beyond `seen` characters."""
        best_end = len(text) + 1
        best_start, best = 0, ""
        for stop in self._stop:
            start = text.find(stop, max(0, seen - len(stop) + 1))
            if start >= 0 and start + len(stop) < best_end:
                best_start, best_end, best = start, start + len(stop), stop
        if best_end > len(text):
            return None
        return (best_end if self._include_stop else best_start), best


def _possible_start(text: str, stops: Sequence[str]) -> int:
    """Return the length of the longest suffix of `text` with which a stop string begins."""
    longest = min(len(text), max(map(len, stops)) - 1)
    for length in range(longest, 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0


def answer_text(metadata: RequestMetadata, tokenizer: Tokenizer) -> AnswerText:
    """Begin the text of the answer to a request."""
    answer, sampling = metadata.answer, metadata.sampling
    eos_ids = frozenset() if sampling.ignore_eos else tokenizer.eos_ids
    end_ids = eos_ids.union(sampling.stop_token_ids)
    # As in vLLM, the tokenizer's own end is no reason to name, and the model's further ones are.
    unnamed = frozenset() if sampling.ignore_eos or tokenizer.eos_id is None else {tokenizer.eos_id}
    return AnswerText(
        tokenizer.detokenizer(metadata.prompt_tail, skip_special_tokens=answer.skip_special_tokens),
        stop=answer.stop,
        include_stop=answer.include_stop,
        min_tokens=sampling.min_tokens,
        end_ids=end_ids,
        named_ids=end_ids - unnamed,
    )


def finish_reason(text: AnswerText, outcome: Outcome) -> str:
    """Return OpenAI's finish reason of an answer."""
    return "stop" if text.met or outcome is Outcome.STOP else "length"

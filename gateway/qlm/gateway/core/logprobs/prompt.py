"""Log probabilities of a prompt in vLLM's form."""

from typing import Any

from qlm.domain.formats.token_logprobs import TokenLogprob
from qlm.gateway.core.logprobs.logged import PromptLogprobs
from qlm.gateway.core.logprobs.token_texts import TokenTexts
from qlm.gateway.core.tokenizer import Tokenizer

Scored = list[dict[str, dict[str, Any]] | None]
"""For each token of a prompt its candidates by token id, itself first; None where they are not known."""


def prompt_logprobs(tokenizer: Tokenizer, prompt: PromptLogprobs) -> Scored:
    """Return the value of the field `prompt_logprobs`; nothing of the first token is known."""
    texts, scored = TokenTexts(tokenizer), Scored()
    for id, logprob in prompt.tokens():
        scored.append(_candidates(texts, id, logprob))
        texts.took(id)
    return scored


def _candidates(texts: TokenTexts, id: int, logprob: TokenLogprob) -> dict[str, dict[str, Any]] | None:
    if logprob.sampled is None:
        return None
    found = {str(id): _candidate(texts, id, logprob.sampled, logprob.rank or None)}
    rank = 0
    for other, value in logprob.others:
        rank += 2 if rank + 1 == logprob.rank else 1
        found[str(other)] = _candidate(texts, other, value, rank)
    return found


def _candidate(texts: TokenTexts, id: int, logprob: float, rank: int | None) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": texts.text(id)}

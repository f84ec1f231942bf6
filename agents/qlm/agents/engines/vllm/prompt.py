"""Parser for the log probabilities of a prompt in an answer of vLLM's /inference/v1/generate."""

import struct
from collections.abc import Mapping
from typing import Any

import orjson

from qlm.domain.errors import EngineGarbledError
from qlm.domain.formats.token_logprobs import UNKNOWN, TokenLogprob, pack_prompt
from qlm.domain.ids import TokenIds


def read_prompt(answer: bytes, prompt_ids: TokenIds, top: int) -> bytes | None:
    """Return the packed log probabilities of a prompt; None if the engine aborted the request.

    Raises:
        EngineGarbledError: The answer cannot be read.
    """
    try:
        plain = orjson.loads(answer)
        if plain["choices"][0]["finish_reason"] == "abort":
            return None
        listed = plain["prompt_logprobs"] or [None] * len(prompt_ids)
        tokens = [_token(id, each) for id, each in zip(prompt_ids, listed, strict=True)]
        return pack_prompt(prompt_ids, tokens, top)
    except (LookupError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise EngineGarbledError(f"the engine sent {answer[:200]!r}: {error!r}") from error


def _token(id: int, candidates: Mapping[str, Any] | None) -> TokenLogprob:
    """Return the log probabilities at one position; vLLM lists the token, then the others by rank."""
    if candidates is None:
        return UNKNOWN
    own = candidates[str(id)]
    others = [(int(other), each["logprob"]) for other, each in candidates.items() if other != str(id)]
    return TokenLogprob(own["logprob"], own["rank"] or 0, tuple(others))

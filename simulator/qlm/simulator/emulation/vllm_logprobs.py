"""Log probabilities of emulated answers: made up, a function of the tokens before, in vLLM 0.32's formats."""

from collections.abc import Sequence
from hashlib import blake2b
from math import log
from typing import Any, Final

from qlm.domain.byte_tokens import EOS_ID, VOCABULARY

_LIKELY: Final = 0.6
"""Probability of the sampled token; each further candidate has half of what is left."""


def candidates(before: Sequence[int], token_id: int, top: int) -> list[tuple[int, float]]:
    """Return the sampled token and the next likely ones, each with its log probability, by rank.

    Args:
        before: The tokens before it.
        token_id: The sampled token, which is the likeliest.
        top: Number of candidates.
    """
    seed = blake2b(bytes(id % 256 for id in before[-8:]) + bytes([token_id % 256]), digest_size=4).digest()
    step, found, left = 1 + 2 * (int.from_bytes(seed) % 100), [(token_id, log(_LIKELY))], 1 - _LIKELY
    other = token_id
    while len(found) < max(top, 1):
        other, left = (other + step) % VOCABULARY, left / 2
        found.append((other, log(left)))
    return found


def generate_logprobs(before: Sequence[int], ids: Sequence[int], top: int) -> dict[str, Any]:
    """Return the log probabilities of tokens in the format of /inference/v1/generate."""
    content = []
    for at, id in enumerate(ids):
        known = candidates([*before, *ids[:at]], id, top)
        listed = [
            {"token_id": each, "logprob": value, "rank": rank} for rank, (each, value) in enumerate(known, 1)
        ]
        content.append({**listed[0], "top_logprobs": listed})
    return {"content": content}


def prompt_logprobs(ids: Sequence[int], top: int) -> list[dict[str, Any] | None]:
    """Return the log probabilities of the tokens of a prompt; the first one has none.

    Args:
        ids: The tokens; each is the likeliest at its place.
        top: Candidates, the token itself among them; at least that one is listed.
    """
    listed: list[dict[str, Any] | None] = [None]
    for at, id in enumerate(ids[1:], 1):
        known = candidates(ids[max(0, at - 8) : at], id, top)
        listed.append(
            {
                str(each): {"logprob": value, "rank": rank, "decoded_token": None}
                for rank, (each, value) in enumerate(known, 1)
            }
        )
    return listed


def completion_logprobs(before: Sequence[int], ids: Sequence[int], top: int, offset: int) -> dict[str, Any]:
    """Return the log probabilities of tokens in the format of /v1/completions.

    Args:
        before: Output tokens before them.
        ids: The tokens.
        top: Candidates besides the sampled token.
        offset: Characters of the text before them.
    """
    texts, offsets, sampled, likely = [], [], [], []
    for at, id in enumerate(ids):
        known = candidates([*before, *ids[:at]], id, top)
        offsets.append(offset)
        texts.append(_text(id))
        sampled.append(known[0][1])
        likely.append({_text(each): value for each, value in known})
        offset += len(texts[-1])
    return {"text_offset": offsets, "token_logprobs": sampled, "tokens": texts, "top_logprobs": likely}


def _text(id: int) -> str:
    return "" if id == EOS_ID else bytes([id]).decode(errors="replace")

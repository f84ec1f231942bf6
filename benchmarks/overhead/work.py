"""Work of one run: prompts and lengths of answers, the same in each arm."""

import random
from dataclasses import dataclass
from typing import Any, Final

PROMPT_TOKENS: Final = 64
"""Prompt tokens per request; so the engine's count of prompt tokens gives its number of started requests."""

ANSWER_TOKENS: Final = (64, 192)
_IDS: Final = (97, 122)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Requests in order.

    Attributes:
        prompts: Token ids; no two prompts begin alike, so that no prefix is in a cache.
        tokens: Length of each answer.
    """

    prompts: tuple[tuple[int, ...], ...]
    tokens: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of requests."""
        return len(self.tokens)


def draw(count: int, *, seed: int, arm: str) -> Work:
    """Draw work; lengths depend on the seed, prompts on seed and arm."""
    lengths, letters = random.Random(f"lengths {seed}"), random.Random(f"prompts {seed} {arm}")
    return Work(
        prompts=tuple(tuple(letters.randint(*_IDS) for _ in range(PROMPT_TOKENS)) for _ in range(count)),
        tokens=tuple(lengths.randint(*ANSWER_TOKENS) for _ in range(count)),
    )


def engine_body(model: str, work: Work, n: int, arm: str) -> dict[str, Any]:
    """Build a request for an engine's /inference/v1/generate, as agents do."""
    return {
        "model": model,
        "request_id": f"{arm}-{n}",
        "token_ids": work.prompts[n],
        "sampling_params": {"max_tokens": work.tokens[n], "detokenize": False, "ignore_eos": True},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def gateway_body(model: str, work: Work, n: int) -> dict[str, Any]:
    """Build the same request for a gateway, as best-effort work, of which agents overcommit the batch."""
    return {
        "model": model,
        "prompt": work.prompts[n],
        "max_tokens": work.tokens[n],
        "ignore_eos": True,
        "service_tier": "flex",
    }

"""The work of one run: prompts and lengths of answers, the same ones for each way to have it done."""

import random
from dataclasses import dataclass
from typing import Any, Final

PROMPT_TOKENS: Final = 64
"""Of each request, so that the engine's count of prompt tokens tells how many it has begun."""

ANSWER_TOKENS: Final = (64, 192)
_IDS: Final = (97, 122)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Requests to be done in this order.

    Attributes:
        prompts: Token ids of each; no two begin alike, so that no prefix is found in a cache.
        tokens: Length of each answer.
    """

    prompts: tuple[tuple[int, ...], ...]
    tokens: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of requests."""
        return len(self.tokens)


def draw(count: int, *, seed: int, arm: str) -> Work:
    """Draw work: lengths depend on the seed alone, prompts on the arm, too."""
    lengths, letters = random.Random(f"lengths {seed}"), random.Random(f"prompts {seed} {arm}")
    return Work(
        prompts=tuple(tuple(letters.randint(*_IDS) for _ in range(PROMPT_TOKENS)) for _ in range(count)),
        tokens=tuple(lengths.randint(*ANSWER_TOKENS) for _ in range(count)),
    )


def engine_body(model: str, work: Work, n: int, arm: str) -> dict[str, Any]:
    """One request for an engine's /inference/v1/generate, as agents write it."""
    return {
        "model": model,
        "request_id": f"{arm}-{n}",
        "token_ids": work.prompts[n],
        "sampling_params": {"max_tokens": work.tokens[n], "detokenize": False, "ignore_eos": True},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def gateway_body(model: str, work: Work, n: int) -> dict[str, Any]:
    """The same request for a gateway, as batch work: of that an agent submits some ahead of its place."""
    return {
        "model": model,
        "prompt": work.prompts[n],
        "max_tokens": work.tokens[n],
        "ignore_eos": True,
        "service_tier": "flex",
    }

"""Workload of an engine: prompts and answers of log-normal length, at Poisson times or all at once."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.fidelity_client import Call

ORDINARY_IDS = range(10, 200)
"""Token ids in the vocabularies of the tiny model and of the emulation, without special meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Log-normal length, rounded, between 1 and a cap.

    Attributes:
        mean_tokens: Mean before rounding and capping.
        log_sd: Standard deviation of the logarithm.
        tokens_max: The cap.
    """

    mean_tokens: float
    log_sd: float
    tokens_max: int

    def draw(self, rng: random.Random) -> int:
        """Draw one length."""
        mu = math.log(self.mean_tokens) - self.log_sd**2 / 2
        return max(1, min(self.tokens_max, round(rng.lognormvariate(mu, self.log_sd))))


PROMPTS = Lengths(mean_tokens=96, log_sd=0.8, tokens_max=512)
ANSWERS = Lengths(mean_tokens=100, log_sd=0.8, tokens_max=512)


@dataclass(frozen=True, slots=True)
class Planned:
    """Planned request: seconds from the start, prompt tokens, output tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


def plan(requests: int, rate_rps: float, seed: int) -> list[Planned]:
    """Draw an open-loop workload; `rate_rps` may be infinite.

    Lengths and arrivals have generators of their own: at another rate the same requests come.
    """
    lengths, arrivals = random.Random(f"{seed} lengths"), random.Random(f"{seed} arrivals")
    at_s, planned = 0.0, []
    for _ in range(requests):
        at_s += arrivals.expovariate(1.0) / rate_rps
        planned.append(Planned(at_s, PROMPTS.draw(lengths), ANSWERS.draw(lengths)))
    return planned


def calls(planned: Sequence[Planned], model: str, run: str) -> list[Call]:
    """Build the requests of one run; prompts differ between runs, so that no prefix is in a cache."""
    rng = random.Random(f"{run} prompts")
    return [
        Call(one.at_s, json.dumps(_body(one, model, f"{run}-{number}", rng)).encode())
        for number, one in enumerate(planned)
    ]


def _body(one: Planned, model: str, request_id: str, rng: random.Random) -> dict[str, Any]:
    return {
        "model": model,
        "request_id": request_id,
        "token_ids": rng.choices(ORDINARY_IDS, k=one.prompt_tokens),
        "sampling_params": {"max_tokens": one.output_tokens, "temperature": 0, "ignore_eos": True},
        "stream": True,
    }

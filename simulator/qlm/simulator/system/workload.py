"""What the clients of one trial send, drawn from its seed."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from types import MappingProxyType
from typing import Any, Final

import orjson

from qlm.domain.ids import ModelId

REQUESTS: Final = 200
SPAN_S: Final = 8.0
"""Requests arrive over so long."""

MODELS: Final = (ModelId("llama"), ModelId("mistral"))
_WORDS: Final = (
    "a",
    "day",
    "in",
    "the",
    "life",
    "of",
    "an",
    "engine",
    "that",
    "counts",
    "its",
    "own",
    "words",
)
_OBJECTIVES: Final[Mapping[ModelId, tuple[dict[str, Any], ...]]] = MappingProxyType(
    {
        MODELS[0]: ({"slo": {"ttft_ms": 2_000}}, {"service_tier": "flex"}),
        MODELS[1]: ({"slo": {"deadline_ms": 8_000}}, {"slo": {"deadline_ms": 8_000, "on_miss": "drop"}}),
    }
)
"""Objectives of each model: few classes, since estimating them is most of what a controller does."""


class Kind(Enum):
    """How a client wants its answer."""

    STREAM = auto()
    WHOLE = auto()
    ASYNC = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What one client does.

    Attributes:
        number: Its number.
        at_s: When it sends its request.
        kind: How it wants the answer.
        body: The request.
        key: Its Idempotency-Key; None: it has none, so it does not send again what may have been accepted.
        breaks_after: Events after which it breaks its stream, to resume it; None: it does not.
        cancels_after_s: When it cancels its request after that was accepted; None: it does not.
        leaves: It does not come back after it broke its stream.
    """

    number: int
    at_s: float
    kind: Kind
    body: bytes
    key: str | None
    breaks_after: int | None
    cancels_after_s: float | None
    leaves: bool


def draw_errands(chance: Random) -> list[Errand]:
    """Draw what all clients do, in the order of their sending."""
    times = sorted(chance.random() * SPAN_S for _ in range(REQUESTS))
    return [_errand(number, at_s, chance) for number, at_s in enumerate(times)]


def _errand(number: int, at_s: float, chance: Random) -> Errand:
    kind = chance.choices(list(Kind), (3, 2, 2))[0]
    breaks = kind is Kind.STREAM and chance.random() < 0.15
    return Errand(
        number=number,
        at_s=at_s,
        kind=kind,
        body=orjson.dumps(_body(number, kind, chance)),
        key=f"key-{number}" if chance.random() < 0.6 else None,
        breaks_after=chance.randint(1, 3) if breaks else None,
        cancels_after_s=chance.random() * 2.0 if chance.random() < 0.03 else None,
        leaves=breaks and chance.random() < 0.1,
    )


def _body(number: int, kind: Kind, chance: Random) -> dict[str, Any]:
    words = chance.choices(_WORDS, k=chance.randint(2, 10))
    model = chance.choice(MODELS)
    body = {
        "model": model,
        "prompt": f"{number}: {' '.join(words)}",
        "max_tokens": chance.randint(3, 24),
        "temperature": 0.0,
        **chance.choices(_OBJECTIVES[model], (2, 1))[0],
    }
    if kind is Kind.STREAM:
        body["stream"] = True
    if chance.random() < 0.05:
        body["presence_penalty"] = 0.5  # pinned: it cannot be resumed exactly
    return body

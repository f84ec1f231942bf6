"""Scripts of a trial's clients, drawn from its seed."""

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
"""Span of the arrivals."""

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
"""Objectives by model; few classes, since estimates per class take most of a controller's time."""


FLOOD_REQUESTS: Final = 80
FLOOD_S: Final = 0.5
"""Span of the arrivals of a flood."""
_FLOOD_CLASSES: Final = 50
_FLOOD_TOKENS_MAX: Final = 3


class Kind(Enum):
    """Form in which a client requests its answer."""

    STREAM = auto()
    WHOLE = auto()
    ASYNC = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientScript:
    """Behaviour of one client.

    Attributes:
        number: Index of the client.
        at_s: Time of its request.
        key: Its Idempotency-Key. A client without one never repeats a request that may have been accepted.
        breaks_after: Number of events after which it breaks its stream and resumes it; None for never.
        cancels_after_s: Delay from acceptance to its cancellation; None for none.
        leaves: It does not resume the stream that it broke.
    """

    number: int
    at_s: float
    kind: Kind
    body: bytes
    key: str | None
    breaks_after: int | None
    cancels_after_s: float | None
    leaves: bool


def draw_scripts(chance: Random, requests: int = REQUESTS) -> list[ClientScript]:
    """Draw the scripts of all clients, in order of their requests."""
    times = sorted(chance.random() * SPAN_S for _ in range(requests))
    return [_script(number, at_s, chance) for number, at_s in enumerate(times)]


def draw_flood(chance: Random, first: int, at_s: float) -> list[ClientScript]:
    """Draw the scripts of clients that come at once: objectives of many classes, short answers."""
    targets_ms = [500 * chance.randint(1, 60) for _ in range(_FLOOD_CLASSES)]
    times = sorted(at_s + chance.random() * FLOOD_S for _ in range(FLOOD_REQUESTS))
    scripts = []
    for number, each_s in enumerate(times, first):
        kind = chance.choice(list(Kind))
        body = _body(number, kind, chance) | {
            "max_tokens": chance.randint(1, _FLOOD_TOKENS_MAX),
            "slo": {chance.choice(("ttft_ms", "deadline_ms")): chance.choice(targets_ms)},
        }
        body.pop("service_tier", None)
        scripts.append(_steady(number, each_s, kind, body, f"key-{number}"))
    return scripts


def _steady(number: int, at_s: float, kind: Kind, body: dict[str, Any], key: str) -> ClientScript:
    """Return the script of a client that waits for its answer."""
    return ClientScript(
        number=number,
        at_s=at_s,
        kind=kind,
        body=orjson.dumps(body),
        key=key,
        breaks_after=None,
        cancels_after_s=None,
        leaves=False,
    )


def _script(number: int, at_s: float, chance: Random) -> ClientScript:
    kind = chance.choices(list(Kind), (3, 2, 2))[0]
    breaks = kind is Kind.STREAM and chance.random() < 0.15
    return ClientScript(
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

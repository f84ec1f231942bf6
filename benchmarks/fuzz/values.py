"""Odd values, and JSON that a correct writer would not write."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Literal:
    """Text that stands in a JSON document as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Pairs:
    """An object by its pairs, among which names may repeat."""

    pairs: tuple[tuple[str, Any], ...]


NUMBERS: Final[Sequence[str]] = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e308", "1e-400", "-0", "-0.0", "0", "-1", "1.5",
    "1.0",
    "00", "+1", ".5", "1.", "0x10", "1_000", "2147483647", "2147483648", "4294967296", "9007199254740993",
    "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616",
    "-9223372036854775809", "1" + "0" * 400, "0." + "3" * 400, "1e5", "1E-5",
)  # fmt: skip
"""Numbers as text, of which some are not JSON."""

TEXTS: Final[Sequence[str]] = (
    "", " ", "\0", "\x7f", "\ud800", "\udfff\ud800", "\U0001f600", "e\u0301" * 20, "\u202eabc", "\ufeff",
    "\ufffe", "a" * 201, "x" * 5000, "\u0000" * 50, "null", "true", "1", "-1", "NaN", "../../etc/passwd",
    "%00%0a", "{}", "[]", "'\"\\", "\r\nx: y", "{{ 1 }}", "${x}", "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59", "2026-11-22T12:00:00", "2026-11-22", "1970-01-01T00:00:00Z", "\u0661",
    "\u00b2",
)  # fmt: skip
"""Texts, of which some have no UTF-8."""

NAMES: Final[Sequence[str]] = (
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "min_tokens", "temperature",
    "top_p",
    "top_k", "min_p", "seed", "stop", "stop_token_ids", "frequency_penalty", "presence_penalty",
    "repetition_penalty", "logit_bias", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output",
    "stream", "stream_options", "user", "priority", "service_tier", "slo", "resume_grace_s", "n", "best_of",
    "logprobs", "tools", "tool_choice", "response_format", "echo", "suffix", "store", "documents",
    "deadline_ms",
    "deadline_at", "ttft_ms", "tpot_ms", "tokens_per_s", "on_miss", "p_met_min", "role", "content", "name",
    "p_met",
    "type", "text", "__proto__", "__class__", "", "\0", "\ud800", "metadata",
)  # fmt: skip
"""Names of fields that exist, that exist elsewhere, and that exist nowhere."""

DEPTHS: Final = (2, 50, 99, 100, 101, 126, 300, 1000, 1100, 5000)
"""Levels of nested values: at, near and far beyond limits of readers."""


def odd_value(rng: random.Random) -> Any:
    """Draw a value of any type, likely at the edge of something."""
    kinds: Sequence[Callable[[], Any]] = (
        lambda: Literal(rng.choice(NUMBERS)),
        lambda: rng.choice(TEXTS),
        lambda: rng.choice((None, True, False, {}, [], [[]], [{}], {"": None})),
        lambda: rng.randint(-(2**70), 2**70),
        lambda: rng.randint(-3, 5000),
        lambda: rng.uniform(-2.0, 2.0) * 10.0 ** rng.randint(-12, 12),
        lambda: nested(rng.choice(DEPTHS), rng),
        lambda: [rng.choice(TEXTS) for _ in range(rng.choice((1, 5, 5, 300)))],
        lambda: [rng.randint(-1, 300) for _ in range(rng.choice((1, 8, 5000)))],
        lambda: {rng.choice(NAMES): rng.choice(TEXTS) for _ in range(rng.randint(1, 4))},
        lambda: Pairs((("a", 1), ("a", 2), ("a", [Literal(rng.choice(NUMBERS))]))),
    )
    return rng.choice(kinds)()


def nested(levels: int, rng: random.Random) -> Literal:
    """Return a value inside that many lists or objects."""
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}"), ('[{"role":', "}]")))
    return Literal(opening * levels + "0" + closing * levels)


def written(value: Any, *, escaped: bool) -> str:
    """Return a value as JSON, or as what it says in place of that; escape what is not ASCII if asked to."""
    match value:
        case Literal():
            return value.text
        case Pairs():
            return _object(value.pairs, escaped=escaped)
        case dict():
            return _object(tuple(value.items()), escaped=escaped)
        case list():
            return "[" + ",".join(written(each, escaped=escaped) for each in value) + "]"
    return json.dumps(value, ensure_ascii=escaped)


def _object(pairs: Sequence[tuple[str, Any]], *, escaped: bool) -> str:
    parts = (
        f"{json.dumps(name, ensure_ascii=escaped)}:{written(each, escaped=escaped)}" for name, each in pairs
    )
    return "{" + ",".join(parts) + "}"


def mangled(data: bytes, rng: random.Random) -> bytes:
    """Damage bytes: cut, flip, insert, repeat or delete some."""
    at = rng.randrange(len(data) + 1)
    match rng.randrange(6):
        case 0:
            return data[:at]
        case 1 if at < len(data):
            return data[:at] + bytes((data[at] ^ (1 << rng.randrange(8)),)) + data[at + 1 :]
        case 2:
            return data[:at] + rng.randbytes(rng.randint(1, 8)) + data[at:]
        case 3:
            return data[:at] + data[max(0, at - 20) : at] * rng.randint(1, 4) + data[at:]
        case 4:
            return data[:at] + data[at + rng.randint(1, 16) :]
    return data + rng.choice((b"\0", b"\xff\xfe", b"}", b"{}", b" " * 100, b"\n" + data))

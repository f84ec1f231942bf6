"""Profiles: how fast one model runs on one kind of accelerator, and where each number comes from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

import yaml

from qlm.domain.errors import InvalidValueError

PROFILE_VERSION: Final = 1
"""Version of the file format; a reader refuses any other."""

_HEAD: Final = ("model", "accelerator", "gpus")
_LINEAR: Final = ("prefill_ms", "decode_ms")
_WHOLE: Final = frozenset(
    {"gpus", "kv_bytes_per_token", "block_tokens", "kv_tokens", "seqs_max", "context_tokens"}
    | {"weights_bytes", "accelerator_memory_bytes"}
)


class SourceKind(StrEnum):
    """How a number of a profile was obtained."""

    MEASURED = "measured"
    """Read off the running hardware, by us or in a published measurement."""
    DERIVED = "derived"
    """Computed or estimated from other figures; the text says how."""
    SPECIFIED = "specified"
    """Taken from a data sheet, the model's configuration or a setting of the engine."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where one number comes from: its kind, and a sentence with the address of what was read."""

    kind: SourceKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """The four coefficients of equation 14 or 15 of SLO-aware annealing, in milliseconds.

    They are not negative and `delta` is positive, so that no iteration takes no time and a larger
    batch is never faster.

    Attributes:
        alpha: Per request and token.
        beta: Per request.
        gamma: Per token of the (average) request.
        delta: Of the iteration itself.
    """

    alpha: float
    beta: float
    gamma: float
    delta: float

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "gamma", "delta"):
            _check(name, getattr(self, name), zero=name != "delta")

    def ms(self, batch: float, tokens: float) -> float:
        """Milliseconds for `batch` requests of `tokens` tokens each."""
        return self.alpha * batch * tokens + self.beta * batch + self.gamma * tokens + self.delta


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What the estimator, the planner and the emulated engine know of one (model, accelerator, GPUs).

    Attributes:
        model: Name of the model.
        accelerator: Kind of accelerator.
        gpus: Accelerators that one engine of it spans.
        prefill: Coefficients of equation 14: one iteration that computes prompts.
        decode: Coefficients of equation 15: one iteration that adds a token to each request.
        kv_bytes_per_token: Bytes of KV cache of one token, over all GPUs.
        block_tokens: Tokens per KV block.
        kv_tokens: Tokens of KV cache that fit beside the weights.
        seqs_max: Requests in the running batch at most.
        context_tokens: Prompt plus output of one request at most.
        weights_bytes: Bytes of the weights, over all GPUs.
        accelerator_memory_bytes: Memory of all its GPUs together.
        swap_warm_s: From weights in host memory to serving (waking from sleep level 1).
        swap_reload_s: From weights in storage to serving in a live process (waking from level 2).
        swap_cold_s: From nothing to serving: process start, weights, engine initialisation.
        unload_s: From serving to memory freed (going to sleep).
        host_bandwidth_bytes_per_s: Between accelerator and host memory, one way, over all GPUs.
        sources: For each number above, by its name in the file, where it comes from.
    """

    model: str
    accelerator: str
    gpus: int
    prefill: Coefficients
    decode: Coefficients
    kv_bytes_per_token: int
    block_tokens: int
    kv_tokens: int
    seqs_max: int
    context_tokens: int
    weights_bytes: int
    accelerator_memory_bytes: int
    swap_warm_s: float
    swap_reload_s: float
    swap_cold_s: float
    unload_s: float
    host_bandwidth_bytes_per_s: float
    sources: Mapping[str, Source]

    def __post_init__(self) -> None:
        for name in ("model", "accelerator"):
            if not getattr(self, name):
                raise InvalidValueError(name, getattr(self, name), "a name")
        for name in NUMBERS:
            _check(name, getattr(self, name), zero=False)
        if self.kv_tokens < 2 * self.block_tokens:
            raise InvalidValueError(
                "kv_tokens", self.kv_tokens, f"at least {2 * self.block_tokens}, two blocks"
            )
        for name in (*_LINEAR, *NUMBERS):
            if name not in self.sources and name != "gpus":
                raise InvalidValueError("sources", sorted(self.sources), f"a source of {name}, too")

    def prefill_ms(self, batch: float, tokens: float) -> float:
        """Time of one iteration that computes `batch` prompts of `tokens` tokens (equation 14), ms."""
        return self.prefill.ms(batch, tokens)

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        """Time of one decode iteration of `batch` requests with that context each (equation 15), ms."""
        return self.decode.ms(batch, context_tokens)


NUMBERS: Final = tuple(
    f.name for f in fields(Profile) if f.name not in {"model", "accelerator", "prefill", "decode", "sources"}
)
"""Names of a profile's plain numbers, as attributes and as keys of the file."""


def parse_profile(mapping: object, where: str) -> Profile:
    """Read a profile from plain data.

    Args:
        mapping: What the YAML or JSON file held.
        where: Name of the file, for messages.

    Raises:
        InvalidValueError: A key is missing, unknown, or has an unusable value; names file and key.
    """
    try:
        return _profile(mapping)
    except InvalidValueError as error:
        raise InvalidValueError(f"{where}: {error.field}", error.value, error.expected) from None


def parse_profile_text(text: str, where: str) -> Profile:
    """Read a profile from the text of a YAML file; see `parse_profile`."""
    try:
        mapping = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise InvalidValueError(f"{where}{line}", getattr(error, "problem", str(error)), "YAML") from None
    return parse_profile(mapping, where)


def profile_mapping(profile: Profile) -> dict[str, Any]:
    """Write a profile as the plain data that `parse_profile` reads."""
    plain: dict[str, Any] = {
        "version": PROFILE_VERSION,
        "model": profile.model,
        "accelerator": profile.accelerator,
    }
    plain["gpus"] = profile.gpus
    for key in _LINEAR:
        linear = getattr(profile, key.removesuffix("_ms"))
        plain[key] = {f.name: getattr(linear, f.name) for f in fields(linear)}
    plain |= {name: getattr(profile, name) for name in NUMBERS}
    plain["sources"] = {name: {str(s.kind): s.text} for name, s in profile.sources.items()}
    return plain


def _profile(mapping: object) -> Profile:
    known = ("version", *_HEAD, *_LINEAR, *(n for n in NUMBERS if n not in _HEAD), "sources")
    plain = _mapping("profile", mapping, known)
    if plain["version"] != PROFILE_VERSION:
        raise InvalidValueError("version", plain["version"], f"{PROFILE_VERSION}")
    values: dict[str, Any] = {name: _text(name, plain[name]) for name in ("model", "accelerator")}
    values |= {name: _number(name, plain[name]) for name in NUMBERS}
    values |= {key.removesuffix("_ms"): _coefficients(key, plain[key]) for key in _LINEAR}
    return Profile(**values, sources=_sources(plain["sources"]))


def _mapping(field: str, value: object, keys: tuple[str, ...]) -> Mapping[str, Any]:
    """Check that `value` is a mapping with exactly these keys."""
    if not isinstance(value, Mapping):
        raise InvalidValueError(field, value, f"a mapping with the keys {', '.join(keys)}")
    for key in value:
        if key not in keys:
            raise InvalidValueError(f"{field}.{key}", value[key], f"no such key; known: {', '.join(keys)}")
    for key in keys:
        if key not in value:
            raise InvalidValueError(f"{field}.{key}", None, "a value; the key is missing")
    return value


def _coefficients(key: str, value: object) -> Coefficients:
    names = tuple(f.name for f in fields(Coefficients))
    plain = _mapping(key, value, names)
    try:
        return Coefficients(**{name: float(_number(name, plain[name])) for name in names})
    except InvalidValueError as error:
        raise InvalidValueError(f"{key}.{error.field}", error.value, error.expected) from None


def _sources(value: object) -> dict[str, Source]:
    known = (*_LINEAR, *(name for name in NUMBERS if name != "gpus"))
    sources = {}
    for name, entry in _mapping("sources", value, known).items():
        kinds = tuple(str(kind) for kind in SourceKind)
        if not isinstance(entry, Mapping) or len(entry) != 1 or next(iter(entry)) not in kinds:
            raise InvalidValueError(f"sources.{name}", entry, f"one of {', '.join(kinds)}, with a text")
        ((kind, text),) = entry.items()
        sources[name] = Source(SourceKind(kind), _text(f"sources.{name}.{kind}", text))
    return sources


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidValueError(field, value, "a text")
    return value.strip()


def _number(field: str, value: object) -> float:
    """Return a number as it stands; whole numbers stay int."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValueError(field, value, "a number")
    if field in _WHOLE:
        if value != round(value):
            raise InvalidValueError(field, value, "a whole number")
        return round(value)
    return value


def _check(field: str, value: float, *, zero: bool) -> None:
    if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
        raise InvalidValueError(field, value, "0 or more" if zero else "a positive number")

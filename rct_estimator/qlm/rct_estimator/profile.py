"""Profiles: the speed of one model on one kind of accelerator, with the source of each number."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

import yaml

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profile_fields import check_positive, check_share, mapping_of, number_of, text_of
from qlm.rct_estimator.profile_points import FitPoints, fits_mapping, parse_fits

PROFILE_VERSION: Final = 1
"""Version of the file format; a reader refuses any other."""

_HEAD: Final = ("model", "accelerator", "gpus")
_LINEAR: Final = ("prefill_ms", "decode_ms")
_WHOLE: Final = frozenset(
    {"gpus", "kv_bytes_per_token", "block_tokens", "kv_tokens", "seqs_max", "context_tokens"}
    | {"weights_bytes", "accelerator_memory_bytes"}
)


class SourceKind(StrEnum):
    """Origin of a number of a profile."""

    MEASURED = "measured"
    """Read off the running hardware, by us or in a published measurement."""
    DERIVED = "derived"
    """Computed or estimated from other figures; the text says how."""
    SPECIFIED = "specified"
    """Taken from a data sheet, the model's configuration or a setting of the engine."""


@dataclass(frozen=True, slots=True)
class Source:
    """Source of one number.

    Attributes:
        text: A sentence with the address of what was read.
        uncertainty: Relative error of the value (0.2 = within 20 %); None if unknown. Specified values have
            none.
    """

    kind: SourceKind
    text: str
    uncertainty: float | None = None

    def __post_init__(self) -> None:
        if self.uncertainty is None:
            return
        check_share("uncertainty", self.uncertainty)
        if self.kind is SourceKind.SPECIFIED:
            raise InvalidValueError("uncertainty", self.uncertainty, "none: the value is specified")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """The four coefficients of equation 14 or 15 of SLO-aware annealing, in milliseconds.

    They are not negative and `delta` is positive, so that no iteration takes no time and a larger
    batch is never faster.

    Attributes:
        alpha: Time per request and token.
        beta: Time per request.
        gamma: Time per token of the (average) request.
        delta: Time of the iteration itself.
    """

    alpha: float
    beta: float
    gamma: float
    delta: float

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "gamma", "delta"):
            check_positive(name, getattr(self, name), zero=name != "delta")

    def ms(self, batch: float, tokens: float) -> float:
        """Return the milliseconds for `batch` requests of `tokens` tokens each."""
        return self.alpha * batch * tokens + self.beta * batch + self.gamma * tokens + self.delta


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Speed, capacity and swap times of one (model, accelerator, GPUs).

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
        swap_warm_s: Time from weights in host memory to serving (waking from sleep level 1).
        swap_reload_s: Time from weights in storage to serving in a live process (waking from level 2).
        swap_cold_s: Time from nothing to serving: process start, weights, engine initialisation.
        unload_s: Time from serving to memory freed (going to sleep).
        host_bandwidth_bytes_per_s: Bandwidth between accelerator and host memory, one way, over all GPUs.
        sources: Origin of each number above, by its name in the file.
        fits: Points to which `prefill_ms` and `decode_ms` were fitted, if the file keeps them.
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
    fits: Mapping[str, FitPoints] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("model", "accelerator"):
            if not getattr(self, name):
                raise InvalidValueError(name, getattr(self, name), "a name")
        for name in NUMBERS:
            check_positive(name, getattr(self, name))
        if self.kv_tokens < 2 * self.block_tokens:
            raise InvalidValueError(
                "kv_tokens", self.kv_tokens, f"at least {2 * self.block_tokens}, two blocks"
            )
        for name in (*_LINEAR, *NUMBERS):
            if name not in self.sources and name != "gpus":
                raise InvalidValueError("sources", sorted(self.sources), f"also a source of {name}")

    def prefill_ms(self, batch: float, tokens: float) -> float:
        """Return the time of an iteration with `batch` prompts of `tokens` tokens (equation 14), ms."""
        return self.prefill.ms(batch, tokens)

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        """Return the time of a decode iteration of `batch` requests with that context (equation 15), ms."""
        return self.decode.ms(batch, context_tokens)


_NOT_NUMBERS: Final = frozenset({"model", "accelerator", "prefill", "decode", "sources", "fits"})
NUMBERS: Final = tuple(f.name for f in fields(Profile) if f.name not in _NOT_NUMBERS)
"""Names of a profile's plain numbers, as attributes and as keys of the file."""


def parse_profile(mapping: object, where: str) -> Profile:
    """Read a profile from plain data.

    Args:
        mapping: Content of the YAML or JSON file.
        where: File name, for messages.

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
    except ValueError as error:  # a number of thousands of digits, or a date that there is none
        raise InvalidValueError(where, str(error), "numbers and dates that can be read") from None
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
    plain["sources"] = {name: _source_mapping(source) for name, source in profile.sources.items()}
    if profile.fits:
        plain["fits"] = fits_mapping(profile.fits)
    return plain


def profile_text(profile: Profile) -> str:
    """Write a profile as the YAML text that `parse_profile_text` reads."""
    return yaml.dump(
        profile_mapping(profile), Dumper=_Dumper, sort_keys=False, width=100, default_flow_style=None
    )


class _Dumper(yaml.SafeDumper):
    """Folds long texts, for readability."""


def _folded(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=">" if " " in text else None)


_Dumper.add_representer(str, _folded)


def _source_mapping(source: Source) -> dict[str, Any]:
    plain: dict[str, Any] = {str(source.kind): source.text}
    if source.uncertainty is not None:
        plain["uncertainty"] = source.uncertainty
    return plain


def _profile(mapping: object) -> Profile:
    known = ("version", *_HEAD, *_LINEAR, *(n for n in NUMBERS if n not in _HEAD), "sources")
    plain = mapping_of("profile", mapping, known, ("fits",))
    if plain["version"] != PROFILE_VERSION:
        raise InvalidValueError("version", plain["version"], f"{PROFILE_VERSION}")
    values: dict[str, Any] = {name: text_of(name, plain[name]) for name in ("model", "accelerator")}
    values |= {name: number_of(name, plain[name], whole=name in _WHOLE) for name in NUMBERS}
    values |= {key.removesuffix("_ms"): _coefficients(key, plain[key]) for key in _LINEAR}
    fits = parse_fits(plain.get("fits", {}), _LINEAR)
    return Profile(**values, sources=_sources(plain["sources"]), fits=fits)


def _coefficients(key: str, value: object) -> Coefficients:
    names = tuple(f.name for f in fields(Coefficients))
    plain = mapping_of(key, value, names)
    try:
        return Coefficients(**{name: float(number_of(name, plain[name])) for name in names})
    except InvalidValueError as error:
        raise InvalidValueError(f"{key}.{error.field}", error.value, error.expected) from None


def _sources(value: object) -> dict[str, Source]:
    known = (*_LINEAR, *(name for name in NUMBERS if name != "gpus"))
    plain = mapping_of("sources", value, known)
    return {name: _source(f"sources.{name}", entry) for name, entry in plain.items()}


def _source(key: str, entry: object) -> Source:
    kinds = tuple(str(kind) for kind in SourceKind)
    given = [key for key in entry if key != "uncertainty"] if isinstance(entry, Mapping) else []
    if not isinstance(entry, Mapping) or len(given) != 1 or given[0] not in kinds:
        raise InvalidValueError(key, entry, f"one of {', '.join(kinds)}, with a text")
    (kind,) = given
    text, uncertainty = text_of(f"{key}.{kind}", entry[kind]), entry.get("uncertainty")
    if uncertainty is not None:
        uncertainty = number_of(f"{key}.uncertainty", uncertainty)
    try:
        return Source(SourceKind(kind), text, uncertainty)
    except InvalidValueError as error:
        raise InvalidValueError(f"{key}.{error.field}", error.value, error.expected) from None

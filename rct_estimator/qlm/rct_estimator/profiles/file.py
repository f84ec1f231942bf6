"""Profile files: version 2 is read and written, version 1 is read."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

import yaml

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.fields import flag_of, mapping_of, number_of, text_of
from qlm.rct_estimator.profiles.iteration import Coefficients, Equations, IterationTime
from qlm.rct_estimator.profiles.points import fit_mapping, parse_fit, parse_fits_of_version_1
from qlm.rct_estimator.profiles.profile import (
    COEFFICIENTS,
    NUMBERS,
    TEXTS,
    Covered,
    Profile,
    Source,
    SourceKind,
)
from qlm.rct_estimator.profiles.token_budget import default_batched_tokens

PROFILE_VERSION: Final = 2
"""Version of the file format that is written."""

_WHOLE: Final = frozenset(
    {"gpus", "kv_bytes_per_token", "block_tokens", "kv_tokens", "seqs_max", "context_tokens"}
    | {"batched_tokens_max", "weights_bytes", "accelerator_memory_bytes"}
)
_EQUATIONS: Final = ("prefill_ms", "decode_ms")
_OPTIONAL_COEFFICIENTS: Final = ("kv_mixed_ms", "sequence_ms", "square_ms", "admission_ms")


def parse_profile(mapping: object, where: str) -> Profile:
    """Read a profile from plain data.

    Args:
        mapping: Content of the YAML or JSON file.
        where: File name, for messages.

    Raises:
        InvalidValueError: A key is missing, unknown, or has an unusable value; names file and key.
    """
    try:
        if isinstance(mapping, Mapping) and mapping.get("version") == 1:
            return _version_1(mapping)
        return _version_2(mapping)
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
    except RecursionError:
        raise InvalidValueError(where, "nested too deeply", "a profile") from None
    return parse_profile(mapping, where)


def profile_mapping(profile: Profile) -> dict[str, Any]:
    """Write a profile as the plain data that `parse_profile` reads."""
    plain: dict[str, Any] = {"version": PROFILE_VERSION}
    plain |= {name: getattr(profile, name) for name in TEXTS}
    plain["iteration"] = _iteration_mapping(profile.iteration)
    plain["async_scheduling"] = profile.async_scheduling
    plain |= {name: getattr(profile, name) for name in NUMBERS}
    if profile.request_ms:
        plain["request_ms"] = profile.request_ms
    plain["sources"] = {name: _source_mapping(source) for name, source in profile.sources.items()}
    if profile.fit is not None:
        plain["fit"] = fit_mapping(profile.fit)
    if profile.covered is not None:
        plain["covered"] = {f.name: getattr(profile.covered, f.name) for f in fields(Covered)}
    if profile.equations is not None:
        both = profile.equations.prefill, profile.equations.decode
        plain["equations"] = {
            key: {f.name: getattr(each, f.name) for f in fields(each)}
            for key, each in zip(_EQUATIONS, both, strict=True)
        }
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


def _iteration_mapping(iteration: IterationTime) -> dict[str, Any]:
    plain = {
        name: getattr(iteration, name)
        for name in COEFFICIENTS
        if name not in _OPTIONAL_COEFFICIENTS or name in iteration.stated
    }
    plain["linear_ms"] = [list(point) for point in iteration.linear_ms]
    return plain


def _source_mapping(source: Source) -> dict[str, Any]:
    plain: dict[str, Any] = {str(source.kind): source.text}
    if source.uncertainty is not None:
        plain["uncertainty"] = source.uncertainty
    return plain


def _version_2(mapping: object) -> Profile:
    known = ("version", *TEXTS, "iteration", "async_scheduling", *NUMBERS, "sources")
    plain = mapping_of("profile", mapping, known, ("request_ms", "fit", "covered", "equations"))
    if plain["version"] != PROFILE_VERSION:
        raise InvalidValueError("version", plain["version"], f"1 or {PROFILE_VERSION}")
    values: dict[str, Any] = {name: text_of(name, plain[name]) for name in TEXTS}
    values |= {name: number_of(name, plain[name], whole=name in _WHOLE) for name in NUMBERS}
    return Profile(
        **values,
        iteration=_iteration(plain["iteration"]),
        async_scheduling=flag_of("async_scheduling", plain["async_scheduling"]),
        request_ms=float(number_of("request_ms", plain.get("request_ms", 0.0))),
        sources=_sources(plain["sources"], (*COEFFICIENTS, "request_ms")),
        fit=parse_fit(plain["fit"]) if "fit" in plain else None,
        covered=_covered(plain["covered"]) if "covered" in plain else None,
        equations=_equations(plain["equations"], "equations.") if "equations" in plain else None,
    )


def _version_1(plain: Mapping[str, Any]) -> Profile:
    numbers = tuple(name for name in NUMBERS if name != "batched_tokens_max")
    mapping_of(
        "profile", plain, ("version", "model", "accelerator", *_EQUATIONS, *numbers, "sources"), ("fits",)
    )
    values: dict[str, Any] = {name: text_of(name, plain[name]) for name in ("model", "accelerator")}
    values |= {name: number_of(name, plain[name], whole=name in _WHOLE) for name in numbers}
    equations = _equations({key: plain[key] for key in _EQUATIONS}, "")
    sources = _sources(plain["sources"], _EQUATIONS)
    for name in _EQUATIONS:
        if name not in sources:
            raise InvalidValueError("sources", sorted(sources), f"also a source of {name}")
    gpus = int(values["gpus"])
    memory_bytes = values["accelerator_memory_bytes"] / max(gpus, 1)
    budget = default_batched_tokens(values["accelerator"], memory_bytes, gpus=gpus)
    of_version = Source(SourceKind.SPECIFIED, "vLLM's default there; files of version 1 have none.")
    prefill, decode = sources.pop("prefill_ms"), sources.pop("decode_ms")
    sources |= {"linear_ms": prefill, "kv_ms": decode, "sequence_ms": decode}
    return Profile(
        **values,
        engine="unknown",
        iteration=IterationTime.of_equations(equations),
        async_scheduling=False,
        batched_tokens_max=budget,
        sources=sources | {"batched_tokens_max": of_version},
        fit=parse_fits_of_version_1(plain.get("fits", {}), _EQUATIONS),
        equations=equations,
    )


def _iteration(value: object) -> IterationTime:
    needed = tuple(name for name in COEFFICIENTS if name not in _OPTIONAL_COEFFICIENTS)
    plain = mapping_of("iteration", value, needed, _OPTIONAL_COEFFICIENTS)
    points = plain["linear_ms"]
    if not isinstance(points, list) or not all(isinstance(p, list) and len(p) == 2 for p in points):
        raise InvalidValueError("iteration.linear_ms", points, "a list of [tokens, ms]")
    numbers = {
        name: float(number_of(f"iteration.{name}", plain[name])) for name in plain if name != "linear_ms"
    }
    table = tuple(
        (number_of("iteration.linear_ms", tokens), float(number_of("iteration.linear_ms", ms)))
        for tokens, ms in points
    )
    try:
        return IterationTime(**numbers, linear_ms=table)
    except InvalidValueError as error:
        raise InvalidValueError(f"iteration.{error.field}", error.value, error.expected) from None


def _covered(value: object) -> Covered:
    names = tuple(f.name for f in fields(Covered))
    plain = mapping_of("covered", value, names)
    try:
        return Covered(**{name: number_of(name, plain[name]) for name in names})
    except InvalidValueError as error:
        raise InvalidValueError(f"covered.{error.field}", error.value, error.expected) from None


def _equations(value: object, prefix: str) -> Equations:
    plain = mapping_of("equations", value, _EQUATIONS)
    return Equations(*(_coefficients(f"{prefix}{key}", plain[key]) for key in _EQUATIONS))


def _coefficients(key: str, value: object) -> Coefficients:
    names = tuple(f.name for f in fields(Coefficients))
    plain = mapping_of(key, value, names)
    try:
        return Coefficients(**{name: float(number_of(name, plain[name])) for name in names})
    except InvalidValueError as error:
        raise InvalidValueError(f"{key}.{error.field}", error.value, error.expected) from None


def _sources(value: object, coefficients: tuple[str, ...]) -> dict[str, Source]:
    known = (*coefficients, *(name for name in NUMBERS if name != "gpus"))
    plain = mapping_of("sources", value, (), known)
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

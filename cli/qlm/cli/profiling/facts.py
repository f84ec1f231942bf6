"""Builds a profile from measurements and from facts that cannot be measured."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from qlm.cli.profiling.settings import FACTS, SETTINGS, Settings
from qlm.domain.fleet import EngineCapacity
from qlm.rct_estimator.profiles.accelerators import find_accelerator
from qlm.rct_estimator.profiles.fit import Fitted, Physics
from qlm.rct_estimator.profiles.points import FitPoint
from qlm.rct_estimator.profiles.profile import COEFFICIENTS, Profile, Source, SourceKind

_WHOLE: Final = frozenset({"weights_bytes", "kv_bytes_per_token", "accelerator_memory_bytes"})

Facts = Mapping[str, tuple[float, Source]]
"""Values of FACTS with their sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What was measured.

    Attributes:
        model: Name of the model in the profile.
        accelerator: Kind of accelerator.
        gpus: How many of them one engine spans.
        engine: Engine and version.
        measured: A sentence for the sources.
    """

    model: str
    accelerator: str
    gpus: int
    engine: str
    measured: str


def facts_of(profile: Profile) -> Facts:
    """Return the facts in a profile of the same model and accelerator."""
    return {name: (getattr(profile, name), profile.sources[name]) for name in FACTS}


def given_facts(values: Mapping[str, float | None], date: str) -> Facts:
    """Return the facts given on the command line, with their source."""
    source = Source(SourceKind.SPECIFIED, f"given to qlm profile on {date}")
    return {name: (value, source) for name, value in values.items() if value is not None}


def physics_of(identity: Identity, facts: Facts) -> Physics | None:
    """Return what memory bandwidth allows; None for an accelerator without a data sheet here."""
    known = find_accelerator(identity.accelerator)
    if known is None:
        return None
    return Physics.of(
        kv_bytes_per_token=facts["kv_bytes_per_token"][0],
        weights_bytes=facts["weights_bytes"][0],
        bandwidth_bytes_per_s=identity.gpus * known.bandwidth_bytes_per_s,
    )


def request_ms(lone_ms: Mapping[int, float], fitted: Fitted) -> float:
    """Return the time of a lone request beside its one iteration: the median, or 0 if that is negative."""
    outside = [
        ms - FitPoint(1, tokens, 0, 0, 0, ms).predicted_ms(fitted.iteration) for tokens, ms in lone_ms.items()
    ]
    return max(0.0, float(f"{statistics.median(outside):.3g}"))


def build_profile(
    identity: Identity,
    capacity: EngineCapacity,
    settings: Settings,
    fitted: Fitted,
    facts: Facts,
    lone_ms: Mapping[int, float],
) -> Profile:
    """Build the profile of a measured engine from its fit, all of FACTS, and times of lone requests."""
    reported = Source(SourceKind.MEASURED, f"Reported by the engine. {identity.measured}")
    sources = dict.fromkeys(COEFFICIENTS, _fit_source(fitted, identity))
    sources["admission_ms"] = Source(
        SourceKind.MEASURED,
        f"The same, and what short requests in a closed loop took beyond the fit. {identity.measured}",
    )
    sources |= {name: source for name, (_value, source) in facts.items()}
    sources |= dict.fromkeys(("block_tokens", "kv_tokens", "context_tokens"), reported)
    for name in ("seqs_max", "batched_tokens_max"):
        sources[name] = reported if name in settings.reported else _not_reported(name, settings)
    sources["request_ms"] = Source(
        SourceKind.MEASURED,
        f"First tokens of lone requests, less their iterations by the fit. {identity.measured}",
    )
    values: dict[str, Any] = {
        name: round(value) if name in _WHOLE else value for name, (value, _source) in facts.items()
    }
    return Profile(
        model=identity.model,
        accelerator=identity.accelerator,
        gpus=identity.gpus,
        engine=identity.engine,
        iteration=fitted.iteration,
        async_scheduling=settings.async_scheduling,
        batched_tokens_max=settings.batched_tokens_max,
        block_tokens=capacity.block_tokens,
        # A profile counts the block that an engine keeps for itself, a capacity does not.
        kv_tokens=capacity.kv_tokens + capacity.block_tokens,
        seqs_max=capacity.seqs_max,
        context_tokens=capacity.context_tokens,
        **values,
        sources={name: source for name, source in sources.items() if _states(name, fitted)},
        request_ms=request_ms(lone_ms, fitted),
        fit=fitted.fit,
    )


def _not_reported(name: str, settings: Settings) -> Source:
    how = "as given to qlm profile"
    if name in settings.assumed:
        how = "assumed to be vLLM's default on this accelerator: the engine does not say"
    return Source(SourceKind.SPECIFIED, f"{SETTINGS[name]} of the engine, {how}")


def _states(name: str, fitted: Fitted) -> bool:
    """Whether a number is in the file: a coefficient is not if leaving it out means the same."""
    return name not in COEFFICIENTS or name in fitted.iteration.stated


def _fit_source(fitted: Fitted, identity: Identity) -> Source:
    text = f"Least relative error over the points below. {identity.measured}"
    return Source(SourceKind.MEASURED, text, fitted.fit.held_out_max or fitted.fit.error_max)

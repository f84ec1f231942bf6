"""Builds a profile from measurements and from facts that cannot be measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from qlm.cli.profiling.measure import Measured
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import EngineCapacity
from qlm.rct_estimator.profiles.fit import Fit, LinePoint, fit_coefficients
from qlm.rct_estimator.profiles.iteration import Coefficients, Equations, IterationTime
from qlm.rct_estimator.profiles.points import FitPoint, FitPoints, errors
from qlm.rct_estimator.profiles.profile import Profile, Source, SourceKind

FACTS: Final[Mapping[str, str]] = {
    "weights_bytes": "bytes of the weights, over all GPUs",
    "kv_bytes_per_token": "bytes of KV cache of one token, over all GPUs",
    "accelerator_memory_bytes": "memory of all its GPUs together, in bytes",
    "swap_warm_s": "seconds to wake from host memory",
    "swap_reload_s": "seconds to wake from storage",
    "swap_cold_s": "seconds to start from nothing",
    "unload_s": "seconds to go to sleep",
    "host_bandwidth_bytes_per_s": "bytes per second between host and accelerator memory",
}
"""Facts that an engine's API does not expose: key in the profile, and the question at the prompt."""

_WHOLE: Final = frozenset({"weights_bytes", "kv_bytes_per_token", "accelerator_memory_bytes"})
_DIGITS: Final = 5

Facts = Mapping[str, tuple[float, Source]]
"""Values of FACTS with their sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Model and accelerators of a profile; `measured` is a sentence for its sources."""

    model: str
    accelerator: str
    gpus: int
    measured: str


def facts_of(profile: Profile) -> Facts:
    """Return the facts in a profile of the same model and accelerator."""
    return {name: (getattr(profile, name), profile.sources[name]) for name in FACTS}


def given_facts(values: Mapping[str, float | None], date: str) -> Facts:
    """Return the facts given on the command line, with their source."""
    source = Source(SourceKind.SPECIFIED, f"given to qlm profile on {date}")
    return {name: (value, source) for name, value in values.items() if value is not None}


def fit_points(name: str, points: tuple[LinePoint, ...]) -> Fit:
    """Fit measured points.

    Raises:
        InvalidValueError: Nothing was measured.
    """
    if not points:
        raise InvalidValueError(name, "no point", "at least one measured point")
    return fit_coefficients(points)


def build_profile(
    identity: Identity,
    capacity: EngineCapacity,
    measured: Measured,
    fits: tuple[Fit, Fit],
    facts: Facts,
) -> Profile:
    """Build the profile of a measured engine from its fits of prefill and decode, and all of FACTS."""
    reported = Source(SourceKind.MEASURED, f"Reported by the engine. {identity.measured}")
    equations = Equations(*(_rounded(fit.coefficients) for fit in fits))
    iteration = IterationTime.of_equations(equations)
    prefill, decode = (_fit_source(fit, identity) for fit in fits)
    sources = {"linear_ms": prefill, "kv_ms": decode, "sequence_ms": decode, "batched_tokens_max": reported}
    sources |= {name: source for name, (_value, source) in facts.items()}
    sources |= dict.fromkeys(("block_tokens", "kv_tokens", "context_tokens"), reported)
    sources["seqs_max"] = Source(SourceKind.SPECIFIED, "--max-num-seqs of the engine, given to qlm profile")
    values: dict[str, Any] = {
        name: round(value) if name in _WHOLE else value for name, (value, _source) in facts.items()
    }
    return Profile(
        model=identity.model,
        accelerator=identity.accelerator,
        gpus=identity.gpus,
        engine="vLLM",
        iteration=iteration,
        async_scheduling=False,
        batched_tokens_max=2048,
        block_tokens=capacity.block_tokens,
        # A profile counts the block that an engine keeps for itself, a capacity does not.
        kv_tokens=capacity.kv_tokens + capacity.block_tokens,
        seqs_max=capacity.seqs_max,
        context_tokens=capacity.context_tokens,
        **values,
        sources=sources,
        fit=_kept(iteration, measured),
        equations=equations,
    )


def _fit_source(fit: Fit, identity: Identity) -> Source:
    lost = f"; the points do not identify {', '.join(fit.unidentified)}" if fit.unidentified else ""
    text = f"Least squares (relative error) over the points below, R2 {fit.r2:.4f}{lost}. {identity.measured}"
    return Source(SourceKind.MEASURED, text, min(1.0, _digits(fit.error_max, 2)))


def _kept(iteration: IterationTime, measured: Measured) -> FitPoints:
    points = [FitPoint(p.batch, p.tokens, 0, 0, 0, _digits(p.ms)) for p in measured.prefill]
    points += [FitPoint(0, 0, 0, p.batch, _digits(p.tokens), _digits(p.ms)) for p in measured.decode]
    mean, largest = errors(iteration, points)
    mean, largest = _digits(min(mean, 1.0), 2), _digits(min(largest, 1.0), 2)
    return FitPoints(points=tuple(points), error_mean=min(mean, largest), error_max=largest)


def _rounded(coefficients: Coefficients) -> Coefficients:
    return Coefficients(
        alpha=_digits(coefficients.alpha),
        beta=_digits(coefficients.beta),
        gamma=_digits(coefficients.gamma),
        delta=_digits(coefficients.delta),
    )


def _digits(value: float, digits: int = _DIGITS) -> float:
    return float(f"{value:.{digits}g}")

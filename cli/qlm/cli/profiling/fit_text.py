"""A fit as lines of text."""

from qlm.rct_estimator.profiles.fit import Fitted
from qlm.rct_estimator.profiles.iteration import IterationTime

_UNKNOWN = {
    "kv_mixed_ms": "taken as kv_ms",
    "kv_ms": "the value is the usual one, or none",
    "sequence_ms": "counted per token",
    "square_ms": "counted per token",
    "admission_ms": "counted per token and sequence",
}
"""What stands in for a coefficient that is not identified. The time on the host is not listed: every
iteration has it, so timings never separate it from the linear term."""


def fit_lines(fitted: Fitted) -> list[str]:
    """Describe coefficients, errors, and what the points leave open."""
    fit = fitted.fit
    lines = [
        f"iteration  {_formula(fitted.iteration)}",
        f"linear(N)  {_table(fitted.iteration)}",
        f"{len(fit.points)} points, error {fit.error_mean:.1%} mean, {fit.error_max:.1%} at most",
    ]
    if fit.held_out_mean is not None:
        lines[-1] += f"; held out {fit.held_out_mean:.1%} mean, {fit.held_out_max:.1%} at most"
    lines += [f"not identified: {name}, {_UNKNOWN[name]}" for name in fit.unidentified if name in _UNKNOWN]
    lines += [
        f"{name} is at its limit by memory bandwidth: check bytes of KV and weights, and the accelerator"
        for name in fitted.at_limit
    ]
    return lines


def _formula(iteration: IterationTime) -> str:
    parts = ["linear(N)"] + ([f"{iteration.host_ms:.4g}"] if iteration.host_ms else [])
    for value, symbol in (
        (iteration.kv_ms, "C"),
        (iteration.sequence_ms, "B"),
        (iteration.square_ms, "S"),
        (iteration.admission_ms, "A"),
    ):
        parts += [f"{value:.4g} {symbol}"] if value else []
    mixed = iteration.kv_mixed_ms
    beside = f"; beside prompts {mixed:.4g} C" if mixed is not None else ""
    return f"ms = {' + '.join(parts)}{beside}"


def _table(iteration: IterationTime) -> str:
    return ", ".join(f"{ms:.4g} ms at {tokens:.0f}" for tokens, ms in iteration.linear_ms)

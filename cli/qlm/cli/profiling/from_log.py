"""`qlm profile --from-log`: a profile from the log of an engine that served elsewhere."""

from dataclasses import replace
from pathlib import Path

import click

from qlm.cli.profiling.named import named_profile
from qlm.cli.profiling.request_log import log_source_text, logs_of, read_request_log
from qlm.cli.profiling.saving import save
from qlm.rct_estimator.profiles.beyond import beyond_fit
from qlm.rct_estimator.profiles.file import parse_profile_text, profile_text
from qlm.rct_estimator.profiles.profile import Profile, Source, SourceKind
from qlm.simulator.evaluation.log_fit import LogFit, fit_log, with_coefficients
from qlm.simulator.evaluation.request_log import RequestLog


def profile_from_log(log_file: Path, start: str, out: Path) -> None:
    """Fit a profile to a log and write it.

    Args:
        log_file: CSV or JSON lines with a row per request.
        start: Profile with the limits of the engine, and coefficients to begin with.
        out: File to write.
    """
    log, profile = read_request_log(log_file), named_profile(start)
    fit = fit_log(log, profile, lambda number, most: click.echo(f"step {number} of at most {most}", err=True))
    fitted = _stated(log, profile, fit)
    text = profile_text(fitted)
    parse_profile_text(text, str(out))
    save(out, text)
    click.echo(
        f"{len(log)} requests replayed: mean TTFT off by {fit.ttft_error:.1%}, E2E by {fit.e2e_error:.1%}"
    )
    for name in fit.unidentified:
        click.echo(f"not identified by the log: {name}")
    for line in beyond_fit(fitted):
        click.echo(line)
    click.echo(f"written to {out}")


def _stated(log: RequestLog, start: Profile, fit: LogFit) -> Profile:
    """Return the profile with its sources: what the log does not identify is as uncertain as it was."""
    text = f"Fitted to the {log_source_text(log)}, {len(log)} requests, by replaying it."
    if open_ones := [name for name in fit.unidentified if name != "host_ms"]:
        text += f" The log does not identify {', '.join(open_ones)}: they follow the profile to begin with."
    text += " The time on the host counts in linear_ms."
    if before := logs_of(start):
        text += f" That profile was fitted to the {', the '.join(before)}."
    source = Source(SourceKind.DERIVED, text, min(1.0, float(f"{fit.e2e_error:.2g}")))
    fitted = with_coefficients(start, fit.iteration, fit.request_ms, source)
    uncertain = {name: replace(source, uncertainty=_uncertainty(start, name)) for name in open_ones}
    kept = {name: uncertain.get(name, each) for name, each in fitted.sources.items()}
    return replace(fitted, sources=kept, covered=fit.covered)


def _uncertainty(start: Profile, name: str) -> float | None:
    """Return the uncertainty of a coefficient of the start; None if it has none."""
    source = start.sources.get(name) or (start.sources.get("kv_ms") if name == "kv_mixed_ms" else None)
    return source.uncertainty if source else None

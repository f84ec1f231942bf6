"""Text and JSON of a comparison between the engine model and a log."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from qlm.cli.inspect.layout import Table
from qlm.cli.inspect.render import table
from qlm.domain.shown import cut
from qlm.rct_estimator.profiles.profile import COEFFICIENTS, Profile
from qlm.simulator.evaluation.fidelity import QUANTILES, Errors, LevelFidelity
from qlm.simulator.evaluation.request_log import RequestLog

_REPLAYED: Final = (*COEFFICIENTS, "request_ms")
_LIMITS: Final = ("kv_tokens", "seqs_max", "batched_tokens_max", "block_tokens")
_SOURCE_CHARACTERS: Final = 100
"""Characters of a source that are shown."""
_LATENCIES: Final = {"TTFT": "ttft", "TPOT": "tpot", "E2E": "e2e"}


def judgement(
    log: RequestLog, profile: Profile, levels: Sequence[LevelFidelity], fitted: Sequence[str]
) -> dict[str, Any]:
    """Return the whole comparison as plain data for JSON."""
    names = ("model", "accelerator", "gpus", "engine", "async_scheduling", *_LIMITS)
    return {
        "log": {"name": log.name, "sha256": log.sha256, "requests": len(log)},
        "profile": {name: getattr(profile, name) for name in names},
        "sources": {name: asdict(source) for name, source in profile.sources.items()},
        "fitted_to_this_log": list(fitted),
        "levels": [asdict(level) for level in levels],
    }


def profile_lines(profile: Profile) -> Iterator[str]:
    """Describe a profile and, in short, where the numbers that a replay uses come from."""
    mode = "asynchronous" if profile.async_scheduling else "synchronous"
    yield f"profile: {profile.model} on {profile.gpus} x {profile.accelerator}, {profile.engine}"
    yield (
        f"  at most {profile.seqs_max} requests and {profile.batched_tokens_max} tokens per iteration, "
        f"{profile.kv_tokens} tokens of KV cache, {mode} scheduling"
    )
    names: dict[str, list[str]] = {}
    for name in (*_REPLAYED, *_LIMITS):
        if (source := profile.sources.get(name)) is not None:
            names.setdefault(
                f"{source.kind}: {cut(' '.join(source.text.split()), _SOURCE_CHARACTERS)}", []
            ).append(name)
    for text, of in names.items():
        yield f"  {', '.join(of)} {text}"


def fitted_lines(log: RequestLog, fitted: Sequence[str]) -> Iterator[str]:
    """Say that a profile was made from this log, or may have been."""
    if fitted:
        yield (
            f"NO JUDGEMENT: this log, {log.name}, gave {', '.join(fitted)}. The errors below show "
            "how well the profile fits it, not how true it is."
        )
    else:
        yield f"no source of the profile names this log, {log.name}"


def level_table(level: LevelFidelity) -> Table:
    """Lay out the errors of one load level."""
    rate = "all at once" if level.arrival_rps is None else f"{level.arrival_rps:.3g}/s"
    heads = ("", "log, s>", "model, s>", "mean>", *(f"{name.upper()}>" for name in QUANTILES), "each>")
    found = ((title, getattr(level, name)) for title, name in _LATENCIES.items())
    rows = ((title, *_cells(errors)) for title, errors in found if errors is not None)
    return table(f"{level.level}: {level.requests} requests, {rate}", heads, rows)


def level_lines(level: LevelFidelity) -> Iterator[str]:
    """Describe the saturated rate and the preemptions of one load level."""
    if level.log_rps is not None or level.model_rps is not None:
        error = "" if level.rate_error is None else f" ({signed(level.rate_error)})"
        yield (
            f"  saturated: log {_rate(level.log_rps)}, model {_rate(level.model_rps)}{error}; "
            "latencies of this level mirror the rate"
        )
    if level.preemptions:
        yield f"  the model preempted {level.preemptions} times"


def prefix_line(levels: Sequence[LevelFidelity]) -> str:
    """Describe how many tokens of prompts were shared, and found in the model's prefix cache."""
    shared, hit = sum(each.shared_tokens for each in levels), sum(each.hit_tokens for each in levels)
    if not shared:
        return "no request shares a prefix"
    return f"shared prefixes: {shared} prompt tokens, {hit} of them found in the model's cache"


def signed(share: float | None) -> str:
    """Format an error as a signed percentage."""
    return "-" if share is None else f"{100 * share:+.1f}%"


def _rate(rps: float | None) -> str:
    return "not" if rps is None else f"{rps:.3g}/s"


def _cells(found: Errors) -> list[str]:
    each = "-" if found.each is None else f"{100 * found.each:.1f}%"
    means = [f"{of['mean']:.4g}" for of in (found.log_s, found.model_s)]
    return [*means, *(signed(found.error[name]) for name in ("mean", *QUANTILES)), each]

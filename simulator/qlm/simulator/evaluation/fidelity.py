"""Errors of the engine model against a log: latencies by load level, and the rate while saturated."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.evaluation.replay import Replayed, replay
from qlm.simulator.evaluation.request_log import RequestLog
from qlm.simulator.prefixes import block_ids, shared_tokens

FloatArray = npt.NDArray[np.float64]

QUANTILES: Final[Mapping[str, float]] = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

OUTRUN_SHARE: Final = 0.1
"""Share of the arrivals by which the queue must grow, over the later half of their time, in saturation."""
OUTRUN_REQUESTS: Final = 10
"""Requests by which it must grow at least; fewer may be chance."""
FULL_SHARE: Final = 0.9
"""Share of the largest batch at which the batch counts as full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of one latency at one load level.

    Attributes:
        log_s: Mean and QUANTILES of the log, seconds, by name.
        model_s: The same of the model.
        error: (model - log) / log, by name; None where the log has 0.
        each: Mean over requests of |model - log| / log; None if the log has only zeros.
    """

    log_s: dict[str, float]
    model_s: dict[str, float]
    error: dict[str, float | None]
    each: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelFidelity:
    """Fidelity of the engine model at one load level.

    Attributes:
        level: Name of the level.
        requests: Number of its requests.
        arrival_rps: Mean rate of arrivals; None if all arrive at once.
        ttft: Errors of the time to the first token.
        tpot: Errors of the time per further token; None without answers of two tokens.
        e2e: Errors of the time to the last token.
        log_rps: Requests that the engine of the log served per second while arrivals outran it; None if they
            did not.
        model_rps: The same of the model.
        rate_error: (model_rps - log_rps) / log_rps; None without one of them.
        shared_tokens: Prompt tokens with which an earlier prompt began, too.
        hit_tokens: Prompt tokens that the model's prefix cache held.
        preemptions: Preemptions by the model.
    """

    level: str
    requests: int
    arrival_rps: float | None
    ttft: Errors
    tpot: Errors | None
    e2e: Errors
    log_rps: float | None
    model_rps: float | None
    rate_error: float | None
    shared_tokens: int
    hit_tokens: int
    preemptions: int


def fidelity(log: RequestLog, profile: Profile) -> list[LevelFidelity]:
    """Replay each load level of a log on an engine of its own, and compare.

    Raises:
        InvalidValueError: The profile's KV cache cannot hold a request; names its line.
    """
    return [compare(name, served, replay(served, profile)) for name, served in log.levels()]


def compare(level: str, log: RequestLog, model: Replayed) -> LevelFidelity:
    """Compare one load level of a log with its replay."""
    of_model = replace(log, first_token_ns=model.first_token_ns, end_ns=model.end_ns)
    decoded = log.output_tokens > 1
    span_s = float(log.arrival_ns[-1]) / 1e9
    log_rps, model_rps = (saturated_rps(each) if is_saturated(each) else None for each in (log, of_model))
    return LevelFidelity(
        level=level,
        requests=len(log),
        arrival_rps=(len(log) - 1) / span_s if span_s > 0 else None,
        ttft=errors(log.ttft_s, of_model.ttft_s),
        tpot=errors(_tpot_s(log)[decoded], _tpot_s(of_model)[decoded]) if decoded.any() else None,
        e2e=errors(log.e2e_s, of_model.e2e_s),
        log_rps=log_rps,
        model_rps=model_rps,
        rate_error=model_rps / log_rps - 1 if log_rps and model_rps else None,
        shared_tokens=shared_tokens(block_ids(log.prefix, log.prefix_tokens), log.prefix_tokens.tolist()),
        hit_tokens=int(model.cached_tokens.sum()),
        preemptions=model.preemptions,
    )


def errors(log_s: FloatArray, model_s: FloatArray) -> Errors:
    """Compare one latency of the same requests, shape (requests,) each, at least one."""
    of_log, of_model = _figures(log_s), _figures(model_s)
    timed = log_s > 0
    each = np.abs(model_s[timed] / log_s[timed] - 1)
    return Errors(
        log_s=of_log,
        model_s=of_model,
        error={name: of_model[name] / value - 1 if value else None for name, value in of_log.items()},
        each=float(each.mean()) if len(each) else None,
    )


def is_saturated(log: RequestLog) -> bool:
    """Return whether arrivals outrun the engine: the queue for first tokens grows to the last arrival."""
    last_ns = int(log.arrival_ns[-1])
    later = log.arrival_ns >= last_ns / 2
    arrived = int(np.count_nonzero(later))
    begun = int(np.count_nonzero((log.first_token_ns >= last_ns / 2) & (log.first_token_ns <= last_ns)))
    return arrived - begun >= max(OUTRUN_REQUESTS, OUTRUN_SHARE * arrived)


def saturated_rps(log: RequestLog) -> float | None:
    """Return the requests served per second while requests wait and the batch is full; None if never.

    Tokens of an answer count evenly from its first to its last, and a request is the mean number of them: so
    neither the filling of the batch nor the order of long and short answers counts.
    """
    part = saturated_part(log)
    if part is None:
        return None
    start_ns, end_ns = part
    tokens = _tokens_until(log, end_ns) - _tokens_until(log, start_ns)
    return float(tokens / log.output_tokens.mean() / (end_ns - start_ns) * 1e9)


def saturated_part(log: RequestLog) -> tuple[int, int] | None:
    """Find the longest time with requests waiting for their first token, less that of a batch not full.

    Returns:
        Start and end on the log's clock, nanoseconds; None if there is no such time.
    """
    times, waiting = _counts(log.arrival_ns, log.first_token_ns)
    busy = np.diff((waiting > 0).astype(np.int8), prepend=0)
    starts, ends = times[busy == 1], times[busy == -1]
    longest = int(np.argmax(ends - starts))
    start_ns, end_ns = int(starts[longest]), int(ends[longest])
    times, running = _counts(log.first_token_ns, log.end_ns)
    inside = (times >= start_ns) & (times <= end_ns)
    if not inside.any():
        return None
    full = times[inside][running[inside] >= FULL_SHARE * running[inside].max()]
    return (int(full[0]), int(full[-1])) if full[-1] > full[0] else None


def _counts(begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
    """Return times of change, ascending, and how many of the spans hold each of them and what follows."""
    times = np.unique(np.concatenate([begin, end]))
    begun = np.searchsorted(np.sort(begin), times, side="right")
    return times, begun - np.searchsorted(np.sort(end), times, side="right")


def _tokens_until(log: RequestLog, at_ns: int) -> float:
    lasts = np.maximum(log.end_ns - log.first_token_ns, 1)
    return float((log.output_tokens * np.clip((at_ns - log.first_token_ns) / lasts, 0.0, 1.0)).sum())


def _figures(values: FloatArray) -> dict[str, float]:
    return {"mean": float(values.mean())} | {
        name: float(np.quantile(values, share)) for name, share in QUANTILES.items()
    }


def _tpot_s(log: RequestLog) -> FloatArray:
    return np.asarray((log.e2e_s - log.ttft_s) / np.maximum(1, log.output_tokens - 1))

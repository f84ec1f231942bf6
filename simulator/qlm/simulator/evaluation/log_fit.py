"""Fit of coefficients to a log of requests: replay, regress on what each request waited for, repeat.

A log shows no iterations. A replay does: which ones a request waited for until its first and its last token,
and what they computed. The latency of a request is then a sum that is linear in the coefficients, which a
regression adjusts; a replay with these shows the iterations anew.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.columns import OTHERS, segments, separable
from qlm.rct_estimator.profiles.iteration import FloatArray, IterationTime
from qlm.rct_estimator.profiles.least_error import least_absolute
from qlm.rct_estimator.profiles.profile import COEFFICIENTS, Profile, Source, SourceKind
from qlm.simulator.engine.run import Run
from qlm.simulator.engine.step_time import FRACTION_BITS, StepTimes
from qlm.simulator.evaluation.replay import engine_of
from qlm.simulator.evaluation.request_log import RequestLog

_ROUNDS: Final = 10
_AVERAGED: Final = 4
"""Rounds whose coefficients are averaged, those of least error: what a log hardly identifies swings about its
value from round to round, and extrapolates to larger batches."""
_KNOTS: Final = (1, 32, 64, 128, 192, 256, 512, 1024)
"""Tokens at which the linear term may change its slope."""
_PREFERENCE: Final = 0.002
"""Weight of the starting value of a coefficient, as a share of the weight of all requests."""
_ROWS_MAX: Final = 400
"""Requests of a regression; of a longer log they are taken evenly."""
_RUN_MAX: Final = 1 << 20
"""Iterations of a run at most: as many as an arrival allows."""
_NEVER_NS: Final = 1 << 62
_TOKENS: Final = 0
"""Column of all tokens that an iteration computes."""
_CONTEXT: Final = 1
"""Column of the context of an iteration without prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFit:
    """Coefficients fitted to a log.

    Attributes:
        iteration: The coefficients.
        request_ms: Time of a request outside of iterations, milliseconds (`Profile.request_ms`).
        ttft_error: Relative error of the mean time to the first token in a replay. That of a single request
            depends on where in an iteration it arrived, which no fit foresees.
        e2e_error: Mean over requests of the relative error of the time to the last token.
        unidentified: Coefficients that the log does not separate from others; they stay near the start.
    """

    iteration: IterationTime
    request_ms: float
    ttft_error: float
    e2e_error: float
    unidentified: tuple[str, ...]


def with_coefficients(
    profile: Profile, iteration: IterationTime, request_ms: float, source: Source
) -> Profile:
    """Return a profile with these coefficients, and one source for all of them."""
    fitted = (*COEFFICIENTS, "request_ms")
    kept = {name: each for name, each in profile.sources.items() if name not in fitted}
    stated = {name: source for name in COEFFICIENTS if getattr(iteration, name)} | {"request_ms": source}
    return replace(
        profile,
        iteration=iteration,
        request_ms=request_ms,
        sources={**stated, **kept},
        fit=None,
        equations=None,
    )


class _Recorder(StepTimes):
    """Durations of iterations, and what these computed."""

    __slots__ = ("seen",)

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile, profile.batched_tokens_max)
        self.seen: list[tuple[float, ...]] = []

    def ticks(
        self,
        prefills: int,
        prefill_tokens: int,
        double_pairs: int,
        decodes: int,
        context_tokens: int,
        admitted: int = 0,
    ) -> int:
        """Return the duration of one iteration, and remember it."""
        if prefills:
            tokens, sequences = float(prefill_tokens + decodes), float(prefills + decodes)
            self.seen.append((tokens, 0.0, float(context_tokens), sequences, double_pairs / 2, admitted))
        return super().ticks(prefills, prefill_tokens, double_pairs, decodes, context_tokens, admitted)

    def decode_ticks(self, decodes: int, context_tokens: int) -> int:
        """Return the duration of one iteration without prompts, and remember it."""
        self.seen.append((float(decodes), float(context_tokens), 0.0, float(decodes), 0.0, 0.0))
        return super().decode_ticks(decodes, context_tokens)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Traced:
    """A replay: iterations by their ends and what they computed, and each request's first and last one."""

    ends_ns: FloatArray
    durations_ns: FloatArray
    seen: FloatArray
    first: np.ndarray[tuple[int], np.dtype[np.int64]]
    last: np.ndarray[tuple[int], np.dtype[np.int64]]


def fit_log(
    log: RequestLog, start: Profile, on_round: Callable[[int, int], None] = lambda number, total: None
) -> LogFit:
    """Adjust a profile's coefficients to a log.

    Args:
        log: Requests of one engine, at one or more levels of load one after the other.
        start: Limits of the engine, and coefficients to begin with; those that the log leaves open stay.
        on_round: Called as each replay begins, with its number and the number of all.

    Raises:
        InvalidValueError: The profile's KV cache cannot hold a request, or all latencies are zero.
    """
    timed = (log.first_token_ns > log.arrival_ns) | (
        (log.end_ns > log.first_token_ns) & (log.output_tokens > 1)
    )
    if not timed.any():
        raise InvalidValueError(log.name, "only latencies of zero", "a request that took time")
    log = _levels_in_turn(log)
    profile, lost = start, tuple[str, ...]()
    rounds: list[tuple[tuple[float, float], Profile]] = []
    source = Source(SourceKind.DERIVED, "a step of a fit")
    for number in range(_ROUNDS):
        on_round(number + 1, _ROUNDS)
        traced = _trace(log, profile)
        rounds.append((_errors(log, traced, profile.request_ns), profile))
        iteration, request_ms, lost = _regress(log, traced, profile)
        profile = with_coefficients(profile, iteration, request_ms, source)
    rounds.sort(key=lambda each: sum(each[0]))
    best = [profile for _, profile in rounds[:_AVERAGED]]
    iteration, request_ms = _mean([each.iteration for each in best]), fmean(each.request_ms for each in best)
    averaged = with_coefficients(start, iteration, request_ms, source)
    ttft_error, e2e_error = _errors(log, _trace(log, averaged), averaged.request_ns)
    return LogFit(
        iteration=iteration,
        request_ms=request_ms,
        ttft_error=ttft_error,
        e2e_error=e2e_error,
        unidentified=("host_ms", *lost),
    )


def _mean(iterations: list[IterationTime]) -> IterationTime:
    tokens = sorted({at for each in iterations for at, _ in each.linear_ms})
    heights = np.mean([each.host_ms + each.linears(tokens) for each in iterations], axis=0)
    table = zip(tokens, np.maximum.accumulate(heights).tolist(), strict=True)
    return IterationTime(
        host_ms=0.0,
        linear_ms=tuple(table),
        kv_ms=fmean(each.kv_ms for each in iterations),
        kv_mixed_ms=fmean(each.kv_beside_prompts_ms for each in iterations),
        sequence_ms=fmean(each.sequence_ms for each in iterations),
        square_ms=fmean(each.square_ms for each in iterations),
        admission_ms=fmean(each.admission_ms for each in iterations),
    )


def _levels_in_turn(log: RequestLog) -> RequestLog:
    """Return the log with each load level later than the one before; levels may share their clock."""
    if log.level is None:
        return log
    parts, shift_ns, start_ns = [], np.zeros(len(log), dtype=np.int64), 0
    for code in range(len(log.level.names)):
        rows = np.flatnonzero(log.level.codes == code)
        if not len(rows):
            continue
        first_ns = int(log.arrival_ns[rows[0]])
        shift_ns[rows] = start_ns - first_ns
        start_ns += 2 * (int(log.end_ns[rows].max()) - first_ns)  # a replay may take longer than the log
        parts.append(rows)
    rows = np.concatenate(parts)
    return replace(
        log,
        lines=log.lines[rows],
        arrival_ns=(log.arrival_ns + shift_ns)[rows],
        first_token_ns=(log.first_token_ns + shift_ns)[rows],
        end_ns=(log.end_ns + shift_ns)[rows],
        prompt_tokens=log.prompt_tokens[rows],
        output_tokens=log.output_tokens[rows],
        prefix=log.prefix[rows],
        prefix_tokens=log.prefix_tokens[rows],
        level=log.level.at(rows),
    )


def _trace(log: RequestLog, profile: Profile) -> _Traced:
    recorder = _Recorder(profile)
    engine = engine_of(log, profile, recorder)
    first, last = np.full(len(log), -1), np.full(len(log), -1)
    arrivals_ns = [*log.arrival_ns.tolist(), _NEVER_NS]
    runs: list[tuple[Run, int]] = []
    now_ns, coming, left, computed = 0, 0, len(log), 0
    while left:
        while arrivals_ns[coming] <= now_ns:
            engine.add(_call(log, coming), now_ns)
            coming += 1
        run = engine.plan(now_ns, _RUN_MAX)
        if run is None:
            now_ns = arrivals_ns[coming]
            continue
        iterations = run.through(arrivals_ns[coming])
        now_ns = run.end_ns(iterations)
        if iterations:
            runs.append((run, iterations))
            computed += iterations
        for emission in engine.commit(iterations):
            number = int(emission.call_id)
            if first[number] < 0:
                first[number] = computed - 1
            if emission.finish is not None:
                last[number] = computed - 1
                left -= 1
    ends_ns, durations_ns, seen = _iterations(runs, recorder.seen)
    return _Traced(ends_ns=ends_ns, durations_ns=durations_ns, seen=seen, first=first, last=last)


def _call(log: RequestLog, number: int) -> EngineCall:
    limit = Sampling(max_tokens=int(log.output_tokens[number]), ignore_eos=True)
    return EngineCall(call_id=str(number), prompt_ids=(0,) * int(log.prompt_tokens[number]), sampling=limit)


def _iterations(
    runs: list[tuple[Run, int]], seen: list[tuple[float, ...]]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return end, duration and content of each iteration of some runs.

    Args:
        runs: Runs, and how many of their iterations passed.
        seen: Content of the first iteration of each; each next one reads a token more per sequence.
    """
    starts_ns, ends_ns = list[int](), list[int]()
    for run, passed in runs:
        ticks, lasts = run.begin_ticks, run.first_ticks
        for _ in range(passed):
            starts_ns.append(ticks >> FRACTION_BITS)
            ticks += lasts
            lasts += run.growth_ticks
            ends_ns.append(ticks >> FRACTION_BITS)
    counts = np.array([passed for _, passed in runs], dtype=np.int64)
    content = np.repeat(np.array(seen[: len(runs)], dtype=np.float64), counts, axis=0)
    before = np.arange(len(content)) - np.repeat(np.cumsum(counts) - counts, counts)
    content[:, _CONTEXT] += before * content[:, _TOKENS]
    starts, ends = np.array(starts_ns, dtype=np.int64), np.array(ends_ns, dtype=np.int64)
    return ends.astype(np.float64), (ends - starts).astype(np.float64), content


def _errors(log: RequestLog, traced: _Traced, request_ns: int) -> tuple[float, float]:
    e2e_s = np.maximum(log.e2e_s, 1e-9)
    first_s = (traced.ends_ns[traced.first] + request_ns - log.arrival_ns) / 1e9
    last_s = (traced.ends_ns[traced.last] + request_ns - log.arrival_ns) / 1e9
    ttft = abs(float(first_s.mean()) / max(float(log.ttft_s.mean()), 1e-9) - 1)
    return ttft, float(np.abs(last_s / e2e_s - 1).mean())


def _regress(
    log: RequestLog, traced: _Traced, before: Profile
) -> tuple[IterationTime, float, tuple[str, ...]]:
    """Return the coefficients under which these iterations take the times of the log."""
    tokens = traced.seen[:, 0]
    knots = [float(knot) for knot in _KNOTS if knot < tokens.max()] or [1.0]
    columns = np.column_stack([np.ones_like(tokens), segments(tokens, knots), traced.seen[:, 1:]])
    sums = np.vstack([np.zeros(columns.shape[1]), np.cumsum(columns, axis=0)])
    rows = np.linspace(0, len(log) - 1, min(len(log), _ROWS_MAX)).astype(np.int64)
    matrix, target = _waits(log, traced, columns, sums, rows)
    matrix, target = matrix / target[:, None], np.ones_like(target)
    first = 1 + len(knots)
    lost = tuple(
        name
        for n, name in enumerate(OTHERS)
        if not separable(matrix[:, first + n], np.delete(matrix, first + n, 1))
    )
    start = np.append(_vector(before.iteration, knots), before.request_ms)
    # Slopes are sums of rises that are not negative: reading weights hides computing, never the reverse.
    start[1:first] = np.maximum(0.0, np.diff(start[1:first], prepend=0.0))
    matrix[:, 1:first] = np.cumsum(matrix[:, first - 1 : 0 : -1], axis=1)[:, ::-1]
    faint = _PREFERENCE * len(rows) * np.diag(matrix.mean(axis=0)) / matrix.shape[1]
    low = np.zeros_like(start)
    low[0] = 0.01 * start[0]
    x, _ = least_absolute(
        np.vstack([matrix, faint]), np.concatenate([target, faint @ start]), low, np.full_like(start, np.inf)
    )
    x[1:first] = np.cumsum(x[1:first])
    return _iteration(x[:-1], knots, float(tokens.max())), float(x[-1]), lost


def _waits(
    log: RequestLog,
    traced: _Traced,
    columns: FloatArray,
    sums: FloatArray,
    rows: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> tuple[FloatArray, FloatArray]:
    """Return what the iterations of each wait computed, and how long it was by the log, in milliseconds.

    Waits are those for the first token, and from it to the last. Only the former hold the time outside of
    iterations, whose column is the last one.
    """
    first, last = traced.first[rows], traced.last[rows]
    arrival = log.arrival_ns[rows].astype(np.float64)
    begun = np.searchsorted(traced.ends_ns, arrival, side="right")
    share = np.clip((traced.ends_ns[begun] - arrival) / traced.durations_ns[begun], 0.0, 1.0)
    until_first = sums[first + 1] - sums[begun + 1] + share[:, None] * columns[begun]
    after = sums[last + 1] - sums[first + 1]
    ttft_ms = (log.first_token_ns - log.arrival_ns)[rows] / 1e6
    rest_ms = (log.end_ns - log.first_token_ns)[rows] / 1e6
    outside = np.repeat([1.0, 0.0], len(rows))
    matrix = np.column_stack([np.vstack([until_first, after]), outside])
    target = np.concatenate([ttft_ms, rest_ms])
    timed = (target > 0) & (matrix[:, 0] > 0)
    return matrix[timed], target[timed]


def _vector(iteration: IterationTime, knots: list[float]) -> FloatArray:
    heights = [iteration.linear(knot) for knot in knots]
    slopes = (np.diff(heights) / np.diff(knots)).tolist()
    contexts = [iteration.kv_ms, iteration.kv_beside_prompts_ms]
    others = [iteration.sequence_ms, iteration.square_ms, iteration.admission_ms]
    return np.array([iteration.host_ms + heights[0], *slopes, iteration.last_slope_ms, *contexts, *others])


def _iteration(x: FloatArray, knots: list[float], most: float) -> IterationTime:
    ends = [*knots, max(most, knots[-1] + 1.0)]
    rise = np.concatenate([[0.0], np.cumsum(x[1 : 1 + len(knots)] * np.diff(ends))])
    others = dict(zip(OTHERS, x[1 + len(knots) :].tolist(), strict=True))
    table = tuple(zip(ends, (x[0] + rise).tolist(), strict=True))
    return IterationTime(host_ms=0.0, linear_ms=table, **others)

"""Fit of coefficients to a log of requests: replay, regress on what each request waited for, repeat.

A log shows no iterations. A replay does: which ones a request waited for until its first and its last token,
and what they computed. The latency of a request is then a sum that is linear in the coefficients, which a
regression adjusts; a replay with these shows the iterations anew. Where the start is far off, its queues are
not those of the log, and no regression finds the way. So a search first finds the factors of memory and of
computing with which a replay comes nearest. Regressions lead on from there, by whole or partial steps.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.columns import OTHERS, segments
from qlm.rct_estimator.profiles.iteration import FloatArray, IterationTime
from qlm.rct_estimator.profiles.least_error import least_absolute
from qlm.rct_estimator.profiles.profile import COEFFICIENTS, Covered, Profile, Source, SourceKind
from qlm.simulator.evaluation.log_prior import (
    FLOOR,
    KNOTS,
    KV,
    REQUEST,
    RISES,
    SIZE,
    iteration_of,
    least,
    prior,
    scales,
    vector,
)
from qlm.simulator.evaluation.log_trace import SEQUENCES, TOKENS, Traced, levels_in_turn, trace
from qlm.simulator.evaluation.request_log import RequestLog

STEPS_MAX: Final = 9
"""The search for the two factors, and regressions at most."""
_STILL: Final = 1e-4
"""Move of the coefficients, as a share of the floor, below which the search ends."""
_LENGTHS: Final = (1.0, 0.5, 0.25, 0.1)
"""Shares of the way to the result of a regression; the first one that helps is gone, else the least bad."""
_ROWS_MAX: Final = 400
"""Requests of a regression; of a longer log they are taken evenly."""
_SEARCHED_MAX: Final = 400
"""Requests of a replay while the two factors are searched; of a longer log the first ones."""
_POWERS: Final = (-2.0, -1.0, 0.0, 1.0, 2.0)
"""Factors that the search begins with, as powers of two."""
_POWER_STEPS: Final = (0.5, 0.25, 0.125, 0.0625)
_FEW: Final = 50
"""A log of so few waits is trusted half as much as a long one."""
_USUAL: Final = 0.03
"""Dispersion of the waits of a real log, as a share. A log with less of it outweighs beliefs by more."""
_TRUST_MIN: Final = 0.5
"""Least weight of the beliefs: waits in a long queue disperse little, too, and show little."""
_NOISE_MIN: Final = 0.005
"""Least dispersion of waits of one kind, as a share."""
_WEIGHTS: Final = (0.2, 5.0)
"""Least and largest weight of a kind of waits."""
_PARTS: Final[dict[str, tuple[int | slice, ...]]] = {
    "linear_ms": (FLOOR, RISES),
    **{name: (KV + number,) for number, name in enumerate(OTHERS)},
    "request_ms": (REQUEST,),
}
"""What a log may leave open, and where it is in a vector; the floor and the slopes are tried apart."""
_OTHERWISE: Final = (0.5, 1.5)
"""Factors on a coefficient that a log which identifies it refuses."""
_REFUSED: Final = 0.05
"""Rise of the error, as a share of it, by which it refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFit:
    """Coefficients fitted to a log.

    Attributes:
        iteration: The coefficients.
        request_ms: Time of a request outside of iterations, milliseconds (`Profile.request_ms`).
        ttft_error: Relative error of the mean time to the first token in a replay. That of a single request
            depends on where in an iteration it arrived, which no fit foresees.
        e2e_error: Mean over requests of the relative error of the time to the last token.
        unidentified: Coefficients that the log does not separate from others; they follow the start.
        covered: What the replay computed at most: beyond it the coefficients are extrapolated.
    """

    iteration: IterationTime
    request_ms: float
    ttft_error: float
    e2e_error: float
    unidentified: tuple[str, ...]
    covered: Covered


class _Weights(NamedTuple):
    """Weight of the waits for first tokens, and of those from there to the last ones."""

    first: float = 1.0
    rest: float = 1.0


class _State(NamedTuple):
    """A vector of coefficients, and how far the waits of a replay with them are from those of the log."""

    x: FloatArray
    first: FloatArray
    rest: FloatArray
    traced: Traced | None


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
        covered=None,
        equations=None,
    )


def fit_log(
    log: RequestLog, start: Profile, on_step: Callable[[int, int], None] = lambda number, most: None
) -> LogFit:
    """Adjust a profile's coefficients to a log.

    Args:
        log: Requests of one engine, at one or more levels of load one after the other.
        start: Limits of the engine, and coefficients to begin with; what the log leaves open follows them.
        on_step: Called as each step begins, with its number and the most there may be.

    Raises:
        InvalidValueError: The profile's KV cache cannot hold a request, or all latencies are zero.
    """
    timed = (log.first_token_ns > log.arrival_ns) | (
        (log.end_ns > log.first_token_ns) & (log.output_tokens > 1)
    )
    if not timed.any():
        raise InvalidValueError(log.name, "only latencies of zero", "a request that took time")
    fit = _Fit(levels_in_turn(log), start)
    on_step(1, STEPS_MAX)
    states = [fit.begin()]
    for number in range(2, STEPS_MAX + 1):
        on_step(number, STEPS_MAX)
        states.append(fit.step(states[-1]))
        states[-2] = states[-2]._replace(traced=None)  # the replay of a long log is large
        if np.abs(states[-1].x - states[-2].x).max() < _STILL * states[-1].x[FLOOR]:
            break
    return fit.result(fit.nearest(states))


class _Fit:
    """One log and one start."""

    def __init__(self, log: RequestLog, start: Profile) -> None:
        self._log, self._start = log, start
        self._prior = prior(start)
        self._weights = _Weights()
        self._trust = 1.0

    def begin(self) -> _State:
        """Find the factors of memory and computing with which a replay comes nearest."""
        part = self._log.at(np.arange(min(len(self._log), _SEARCHED_MAX)))
        known: dict[tuple[float, float], float] = {}

        def error(powers: tuple[float, float]) -> float:
            if powers not in known:
                profile = self._profile(vector(self._start, 2 ** powers[0], 2 ** powers[1]))
                known[powers] = _distance(
                    *_deviations(part, trace(part, profile), profile.request_ns), _Weights()
                )
            return known[powers]

        best = min(((m, c) for m in _POWERS for c in _POWERS), key=error)
        for step in _POWER_STEPS:
            while (near := min(_around(best, step), key=error)) != best and error(near) < error(best):
                best = near
        return self._state(vector(self._start, 2 ** best[0], 2 ** best[1]))

    def step(self, state: _State) -> _State:
        """Return the best state on the way to the result of a regression, which need not be nearer."""
        self._judge(state)
        matrix, target = self._regression(self._traced(state))
        trust = self._trust * (len(target) + _FEW)
        beliefs, right = self._prior
        aim, _ = least_absolute(
            np.vstack([matrix, trust * beliefs]), np.concatenate([target, trust * right]), *self._bounds()
        )
        before, best = self._cost(state), None
        for length in _LENGTHS:
            after = self._state(state.x + length * (aim - state.x))
            best = after if best is None or self._cost(after) < self._cost(best) else best
            if self._cost(best) < before:
                break
        assert best is not None
        return best

    def nearest(self, states: list[_State]) -> _State:
        """Return the state nearest to the log, by the dispersion of the waits in the last one."""
        self._judge(states[-1])
        return min(states, key=self._cost)

    def _judge(self, state: _State) -> None:
        """Weigh waits and beliefs by the dispersion of the waits."""
        self._weights = _weights(state.first, state.rest)
        dispersion = _distance(state.first, state.rest, self._weights)
        self._trust = min(1.0, max(_TRUST_MIN, dispersion / _USUAL))

    def result(self, state: _State) -> LogFit:
        """Return the fit, with its errors and what the log does not identify."""
        profile, traced = self._profile(state.x), self._traced(state)
        ttft_error, e2e_error = _errors(self._log, traced, profile.request_ns)
        return LogFit(
            iteration=profile.iteration,
            request_ms=profile.request_ms,
            ttft_error=ttft_error,
            e2e_error=e2e_error,
            unidentified=("host_ms", *self._unidentified(state.x, traced)),
            covered=Covered(
                sequences_max=float(traced.seen[:, SEQUENCES].max()),
                tokens_max=float(traced.seen[:, TOKENS].max()),
                context_max=float((self._log.prompt_tokens + self._log.output_tokens).max()),
            ),
        )

    def _unidentified(self, x: FloatArray, traced: Traced) -> list[str]:
        """Return what could be half as much again, or half, at nearly the same error."""
        matrix, target = self._regression(traced)
        low, high = self._bounds()
        refused = (1 + _REFUSED) * max(least_absolute(matrix, target, low, high)[1], _NOISE_MIN * len(target))
        some = np.where(x == 0, scales(self._start), x)

        def could_be(at: int | slice, factor: float) -> bool:
            fixed = low.copy(), high.copy()
            fixed[0][at] = fixed[1][at] = factor * some[at]
            return least_absolute(matrix, target, *fixed)[1] < refused

        return [
            name
            for name, parts in _PARTS.items()
            if any(could_be(part, factor) for part in parts for factor in _OTHERWISE)
        ]

    def _bounds(self) -> tuple[FloatArray, FloatArray]:
        return least(self._start), np.full(SIZE, np.inf)

    def _profile(self, x: FloatArray) -> Profile:
        source = Source(SourceKind.DERIVED, "a step of a fit")
        return with_coefficients(self._start, iteration_of(x), max(0.0, float(x[REQUEST])), source)

    def _state(self, x: FloatArray) -> _State:
        profile = self._profile(x)
        traced = trace(self._log, profile)
        return _State(x, *_deviations(self._log, traced, profile.request_ns), traced)

    def _traced(self, state: _State) -> Traced:
        return state.traced or trace(self._log, self._profile(state.x))

    def _cost(self, state: _State) -> float:
        beliefs, right = self._prior
        away = float(np.abs(beliefs @ state.x - right).sum())
        return _distance(state.first, state.rest, self._weights) + self._trust * away

    def _regression(self, traced: Traced) -> tuple[FloatArray, FloatArray]:
        """Return what each wait computed, per millisecond that it took, and the weights of the waits.

        Only waits for first tokens hold the time outside of iterations.
        """
        log, tokens = self._log, traced.seen[:, TOKENS]
        rows = np.linspace(0, len(log) - 1, min(len(log), _ROWS_MAX)).astype(np.int64)
        columns = np.column_stack([np.ones_like(tokens), segments(tokens, KNOTS), traced.seen[:, 1:]])
        # A slope is the sum of the rises before it, so a rise counts in all segments after it.
        columns[:, RISES] = np.cumsum(columns[:, RISES][:, ::-1], axis=1)[:, ::-1]
        sums = np.vstack([np.zeros(columns.shape[1]), np.cumsum(columns, axis=0)])
        first, last = traced.first[rows], traced.last[rows]
        arrival = log.arrival_ns[rows].astype(np.float64)
        begun = np.searchsorted(traced.ends_ns, arrival, side="right")
        share = np.clip((traced.ends_ns[begun] - arrival) / traced.durations_ns[begun], 0.0, 1.0)
        until_first = sums[first + 1] - sums[begun + 1] + share[:, None] * columns[begun]
        work = np.vstack([until_first, sums[last + 1] - sums[first + 1]])
        target = np.concatenate([log.first_token_ns - log.arrival_ns, log.end_ns - log.first_token_ns])
        ms = target.reshape(2, -1)[:, rows].ravel() / 1e6
        weights = np.repeat(self._weights, len(rows))
        outside = np.zeros((len(work), SIZE - REQUEST))
        outside[: len(rows), 0] = 1.0
        timed = (ms > 0) & (work[:, FLOOR] > 0)
        matrix = np.column_stack([work, outside])[timed] * (weights[timed] / ms[timed])[:, None]
        return matrix, weights[timed]


def _around(at: tuple[float, float], step: float) -> list[tuple[float, float]]:
    moves = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, -1), (-1, 1))
    return [(at[0] + step * memory, at[1] + step * compute) for memory, compute in moves]


def _distance(first: FloatArray, rest: FloatArray, weights: _Weights) -> float:
    """Return the mean weighted deviation of the waits of a replay."""
    return float(np.concatenate([weights.first * first, weights.rest * rest]).mean())


def _deviations(log: RequestLog, traced: Traced, request_ns: int) -> tuple[FloatArray, FloatArray]:
    """Return |ln(replay / log)| of the waits for first tokens, and of those from there to the last ones."""
    begun, ended = traced.ends_ns[traced.first], traced.ends_ns[traced.last]
    first = _ratio(begun + request_ns - log.arrival_ns, log.first_token_ns - log.arrival_ns)
    return first, _ratio(ended - begun, log.end_ns - log.first_token_ns)


def _ratio(replay_ns: FloatArray, log_ns: np.ndarray[tuple[int], np.dtype[np.int64]]) -> FloatArray:
    timed = (replay_ns > 0) & (log_ns > 0)
    return np.asarray(np.abs(np.log(replay_ns[timed] / log_ns[timed])))


def _weights(first: FloatArray, rest: FloatArray) -> _Weights:
    """Weigh each kind of waits by how little they disperse, so that the mean weight is one."""
    if not len(first) or not len(rest):
        return _Weights()
    dispersion = np.maximum([np.median(first), np.median(rest)], _NOISE_MIN)
    counts = np.array([len(first), len(rest)])
    low, high = _WEIGHTS
    each = np.clip(counts.sum() / (counts / dispersion).sum() / dispersion, low, high)
    return _Weights(float(each[0]), float(each[1]))


def _errors(log: RequestLog, traced: Traced, request_ns: int) -> tuple[float, float]:
    first_s = (traced.ends_ns[traced.first] + request_ns - log.arrival_ns) / 1e9
    last_s = (traced.ends_ns[traced.last] + request_ns - log.arrival_ns) / 1e9
    timed, mean_s = log.e2e_s > 0, float(log.ttft_s.mean())
    ttft = abs(float(first_s.mean()) / mean_s - 1) if mean_s else 0.0
    return ttft, float(np.abs(last_s[timed] / log.e2e_s[timed] - 1).mean())

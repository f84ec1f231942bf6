"""Replay of a log that keeps its iterations: when each ended, and what it computed."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.iteration import FloatArray
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.engine.run import Run
from qlm.simulator.engine.step_time import StepTimes
from qlm.simulator.evaluation.replay import engine_of
from qlm.simulator.evaluation.request_log import RequestLog

_RUN_MAX: Final = 1 << 20
"""Iterations of a run at most: as many as an arrival allows."""
_NEVER_NS: Final = 1 << 62
TOKENS: Final = 0
"""Column of all tokens that an iteration computes."""
_CONTEXT: Final = 1
"""Column of the context of an iteration without prompts."""
SEQUENCES: Final = 3
"""Column of the sequences of an iteration."""


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
class Traced:
    """A replay.

    Attributes:
        ends_ns: End of each iteration, shape (iterations,).
        durations_ns: Duration of each.
        seen: What each computed, shape (iterations, 6): tokens, context of decodes without and with prompts
            beside them, sequences, pairs of tokens of prompts, and admitted requests.
        first: Iteration that gave each request its first token, shape (requests,).
        last: Iteration that gave it its last one.
    """

    ends_ns: FloatArray
    durations_ns: FloatArray
    seen: FloatArray
    first: np.ndarray[tuple[int], np.dtype[np.int64]]
    last: np.ndarray[tuple[int], np.dtype[np.int64]]


def levels_in_turn(log: RequestLog) -> RequestLog:
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


def trace(log: RequestLog, profile: Profile) -> Traced:
    """Replay a log with the engine model, prefixes included."""
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
    return Traced(ends_ns=ends_ns, durations_ns=durations_ns, seen=seen, first=first, last=last)


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
    counts = np.array([passed for _, passed in runs], dtype=np.int64)
    before = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    content = np.repeat(np.array(seen[: len(runs)], dtype=np.float64), counts, axis=0)
    content[:, _CONTEXT] += before * content[:, TOKENS]
    ends_ns = np.array([run.end_ns(n + 1) for run, passed in runs for n in range(passed)], dtype=np.int64)
    starts_ns = np.array([run.end_ns(n) for run, passed in runs for n in range(passed)], dtype=np.int64)
    return ends_ns.astype(np.float64), (ends_ns - starts_ns).astype(np.float64), content

"""The whole report of a benchmark: plain data, for the terminal and for files."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from qlm.cli.bench.latency import scheduled_figures, vllm_figures
from qlm.cli.bench.objectives import READERS, Slo
from qlm.cli.bench.rating import FIGURES, Rated, rate
from qlm.cli.bench.record import Run
from qlm.cli.bench.statistics import RESAMPLES, intervals
from qlm.domain.streaming.goodput import HALF_LIFE_S
from qlm.domain.streaming.reader import Reader

Json = dict[str, Any]

_ERROR_KINDS_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """How requests are judged.

    Attributes:
        readers: Readers of each answer.
        goodput_ms: Limits of vLLM's goodput, by name.
        slo: Objective that the requests had; None if they had none.
        half_life_s: Idle time after which half of the users have left.
        resamples: Resamples of an interval; 0 for none.
    """

    readers: tuple[Reader, ...] = READERS
    goodput_ms: Mapping[str, float] = field(default_factory=dict)
    slo: Slo | None = None
    half_life_s: float = HALF_LIFE_S
    resamples: int = RESAMPLES


def report(runs: Sequence[Run], judging: Judging) -> Json:
    """Compute all figures of runs; those of several runs are over all their requests.

    Args:
        runs: The runs, with one request or more.
        judging: Readers, limits and objective.

    Returns:
        Plain data. `readers` has a figure and its 95 % interval by name; `vllm` the figures of vLLM's client
        by its names; `scheduled` those from the schedule; infinite values are those of failed requests.
    """
    requests = [each for run in runs for each in run.requests]
    answered = sum(each.answered for each in requests)
    found: Json = {
        "requests": len(requests),
        "answered": answered,
        "failed": len(requests) - answered,
        "errors": dict(_kinds(each.error or "no token" for each in requests if not each.answered)),
        "runs": len(runs),
        "span_s": sum(run.span_s for run in runs),
        "counting": "; ".join(dict.fromkeys(run.counting for run in runs)),
        "half_life_s": judging.half_life_s,
        "readers": [_reader(runs, reader, judging) for reader in judging.readers],
        "vllm": vllm_figures(runs, judging.goodput_ms),
        "scheduled": scheduled_figures(runs, judging.goodput_ms),
    }
    if judging.goodput_ms:
        found["goodput_ms"] = dict(judging.goodput_ms)
    if judging.slo is not None:
        slo = judging.slo
        found["slo"] = slo.body()
        found["slo_met_share"] = sum(slo.met(each) for each in requests) / len(requests)
    return found


def figures_of(rated: Rated) -> dict[str, float]:
    """Return the figures of a reader."""
    return {name: float(figure(rated)) for name, figure in FIGURES.items()}


def plain(data: Any) -> Any:
    """Return data with null for infinite numbers, as JSON has none."""
    if isinstance(data, dict):
        return {key: plain(each) for key, each in data.items()}
    if isinstance(data, list | tuple):
        return [plain(each) for each in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _reader(runs: Sequence[Run], reader: Reader, judging: Judging) -> Json:
    rated = rate(runs, reader, judging.half_life_s)
    found: Json = {"ttft_s": reader.ttft_s, "tokens_per_s": reader.tokens_per_s, **figures_of(rated)}
    if judging.resamples:
        # A fixed seed: the same file gives the same report.
        rng = np.random.default_rng(1)
        found["intervals"] = intervals(rated, len(rated.idle_s), FIGURES, rng, judging.resamples)
    return found


def _kinds(errors: Iterable[str]) -> list[tuple[str, int]]:
    counts = Counter(errors).most_common()
    rest = sum(count for _, count in counts[_ERROR_KINDS_MAX:])
    return [*counts[:_ERROR_KINDS_MAX], *([("others", rest)] if rest else [])]

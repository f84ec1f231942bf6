"""Latencies and throughput as `vllm bench serve` 0.32 defines them, and the same from the schedule.

vLLM's figures are over complete answers, from the real time of sending; its goodput divides the complete
answers within all limits by the duration. Its latency ends with the last chunk that has choices, and an
answer of one token has a TPOT of 0 for goodput and none for the mean.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from qlm.cli.bench.record import FloatArray, Run, Sent
from qlm.cli.bench.statistics import percentile

PERCENTS: Final = (50, 90, 99)


class Latency(NamedTuple):
    """Latencies of a complete answer, seconds.

    Attributes:
        ttft_s: To the first chunk.
        tpot_s: Per token after the first; 0 for a single token.
        e2el_s: To the last chunk.
        ntpot_s: To the last chunk, by token: the normalized latency of Andes (appendix E).
    """

    ttft_s: float
    tpot_s: float
    e2el_s: float
    ntpot_s: float


def latency_of(sent: Sent, since_s: float) -> Latency:
    """Return the latencies of a complete answer, counted from a time."""
    first_s, last_s = sent.chunks[0].at_s, sent.chunks[-1].at_s
    tokens = sent.tokens
    tpot_s = (last_s - first_s) / (tokens - 1) if tokens > 1 else 0.0
    return Latency(first_s - since_s, tpot_s, last_s - since_s, (last_s - since_s) / tokens)


def gaps_s(sent: Sent) -> list[float]:
    """Return the times between chunks (vLLM's inter-token latencies)."""
    times = [chunk.at_s for chunk in sent.chunks]
    return [later - earlier for earlier, later in pairwise(times)]


def good(latency: Latency, limits_ms: Mapping[str, float]) -> bool:
    """Return whether an answer is within the limits of `--goodput`."""
    found = {"ttft": latency.ttft_s, "tpot": latency.tpot_s, "e2el": latency.e2el_s}
    return all(found[name] <= limit / 1000 for name, limit in limits_ms.items())


def vllm_figures(runs: Sequence[Run], limits_ms: Mapping[str, float]) -> dict[str, float | None]:
    """Return the figures of `vllm bench serve`, by its names; None for a mean of nothing."""
    answers = [each for run in runs for each in run.requests if each.answered]
    duration_s = sum(run.duration_s or run.span_s for run in runs)
    latencies = [latency_of(each, each.sent_s) for each in answers]
    output = sum(each.tokens for each in answers)
    total = output + sum(each.prompt_tokens for each in answers)
    figures: dict[str, float | None] = {
        "completed": len(answers),
        "failed": sum(len(run.requests) for run in runs) - len(answers),
        "duration": duration_s,
        "total_input_tokens": total - output,
        "total_output_tokens": output,
        "request_throughput": len(answers) / duration_s,
        "output_throughput": output / duration_s,
        "total_token_throughput": total / duration_s,
    }
    if limits_ms:
        figures["request_goodput"] = sum(good(each, limits_ms) for each in latencies) / duration_s
    several = [latency for latency, sent in zip(latencies, answers, strict=True) if sent.tokens > 1]
    figures |= _summary("ttft", [each.ttft_s for each in latencies])
    figures |= _summary("tpot", [each.tpot_s for each in several])
    figures |= _summary("ntpot", [each.ntpot_s for each in latencies])
    figures |= _summary("itl", [gap for each in answers for gap in gaps_s(each)])
    figures |= _summary("e2el", [each.e2el_s for each in latencies])
    return figures


def scheduled_figures(runs: Sequence[Run], limits_ms: Mapping[str, float]) -> dict[str, float]:
    """Return latencies from the scheduled arrival over all requests; a failed one never gets a token."""
    requests = [each for run in runs for each in run.requests]
    never = Latency(*[float("inf")] * 4)
    latencies = [latency_of(each, each.scheduled_s) if each.answered else never for each in requests]
    figures: dict[str, float] = {}
    for name, values in (
        ("ttft", [each.ttft_s for each in latencies]),
        ("e2el", [each.e2el_s for each in latencies]),
    ):
        for percent in PERCENTS:
            figures[f"scheduled_p{percent}_{name}_ms"] = 1000 * float(percentile(np.array(values), percent))
    if limits_ms:
        within = sum(good(each, limits_ms) for each in latencies)
        figures["scheduled_good_share"] = within / len(requests)
    late_s = np.array([each.sent_s - each.scheduled_s for each in requests])
    figures["send_delay_p99_ms"] = 1000 * float(percentile(late_s, 99))
    figures["send_delay_max_ms"] = 1000 * float(late_s.max())
    return figures


def _summary(name: str, values_s: Sequence[float]) -> dict[str, float | None]:
    """Summarize with linear interpolation, as vLLM does."""
    keys = (f"mean_{name}_ms", f"median_{name}_ms", f"std_{name}_ms", *(f"p{p}_{name}_ms" for p in PERCENTS))
    if not values_s:
        return dict.fromkeys(keys)
    ms: FloatArray = 1000 * np.array(values_s)
    figures = (ms.mean(), np.median(ms), ms.std(), *(np.percentile(ms, percent) for percent in PERCENTS))
    return {key: float(value) for key, value in zip(keys, figures, strict=True)}

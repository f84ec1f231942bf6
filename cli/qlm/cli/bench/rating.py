"""Experience of the readers of a run: figures in which every request that was sent counts.

A request that failed, was refused or did not finish has an infinite idle time, a QoE of 0 and a benefit of 0,
and has not met its token deadlines. It stays in each denominator, so no server gains by dropping a request.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from qlm.cli.bench.objectives import timeline_of
from qlm.cli.bench.record import FloatArray, Run, Sent
from qlm.cli.bench.statistics import Statistic, percentile
from qlm.domain.streaming.experience import qoe, qoe_star
from qlm.domain.streaming.goodput import HALF_LIFE_S, Streamed, benefit
from qlm.domain.streaming.reader import Reader
from qlm.domain.streaming.timeline import Timeline


class Rated(NamedTuple):
    """Requests of one or more runs as one reader lives through them: columns of shape (requests,).

    Attributes:
        answered: 1 for a complete answer, else 0.
        tokens: Output tokens of complete answers; 0 for the others.
        asked_tokens: Tokens of the answer, or, of a failed request, those that it asked for.
        idle_s: Idle time of the user; infinite for a failed request.
        first_wait_s: Lateness of the first token; infinite for a failed request.
        stalls: Pauses after the first token; 0 for a failed request.
        qoe: Andes' quality of experience.
        qoe_star: The form of it that no late token raises.
        met: 1 if each token came by its deadline, else 0.
        benefit: Tokens that reach users who are still there.
        span_s: Time from the first scheduled arrival to the last event, added up over runs.
    """

    answered: FloatArray
    tokens: FloatArray
    asked_tokens: FloatArray
    idle_s: FloatArray
    first_wait_s: FloatArray
    stalls: FloatArray
    qoe: FloatArray
    qoe_star: FloatArray
    met: FloatArray
    benefit: FloatArray
    span_s: float


def rate(runs: Sequence[Run], reader: Reader, half_life_s: float = HALF_LIFE_S) -> Rated:
    """Rate the requests of runs.

    Args:
        runs: The runs, with one request or more.
        reader: The reader of each answer.
        half_life_s: Idle time after which half of the users have left.
    """
    requests = [each for run in runs for each in run.requests]
    asked = asked_tokens(requests)
    rows = [
        _row(each, timeline_of(each, reader) if each.answered else None, number, half_life_s)
        for each, number in zip(requests, asked, strict=True)
    ]
    columns: list[FloatArray] = list(np.array(rows, dtype=np.float64).T)
    return Rated._make([*columns, sum(run.span_s for run in runs)])


def asked_tokens(requests: Sequence[Sent]) -> list[float]:
    """Return the tokens by which each request counts in a share of tokens.

    A failed request counts by the length that it asked for; if that is unknown, by the mean of the complete
    answers (1 without any). It would vanish from the denominator otherwise.
    """
    answers = [each.tokens for each in requests if each.answered]
    mean = sum(answers) / len(answers) if answers else 1.0

    def number(sent: Sent) -> float:
        if sent.answered:
            return sent.tokens
        return max(sent.tokens, mean if sent.asked_tokens is None else sent.asked_tokens)

    return [number(each) for each in requests]


def _row(
    sent: Sent, timeline: Timeline | None, asked: float, half_life_s: float
) -> tuple[float, float, float, float, float, float, float, float, float, float]:
    if timeline is None:
        never = float("inf")
        return 0, 0, asked, never, never, 0, 0, 0, 0, 0
    met = timeline.in_time
    gained = benefit(Streamed(sent.tokens, timeline.late_s, met), half_life_s=half_life_s)
    return (
        1,
        sent.tokens,
        asked,
        timeline.late_s,
        timeline.first_wait_s,
        timeline.stalls,
        qoe(timeline),
        qoe_star(timeline),
        met,
        gained,
    )


def _share(part: FloatArray, whole: FloatArray | int) -> FloatArray:
    total = whole.sum(-1) if isinstance(whole, np.ndarray) else whole
    return np.asarray(part.sum(-1) / np.maximum(total, 1e-12))


def _mean(values: FloatArray) -> FloatArray:
    return np.asarray(values.mean(-1))


FIGURES: Final[dict[str, Statistic[Rated]]] = {
    "idle_p50_s": lambda rated: percentile(rated.idle_s, 50),
    "idle_p99_s": lambda rated: percentile(rated.idle_s, 99),
    "idle_max_s": lambda rated: percentile(rated.idle_s, 100),
    "first_wait_p50_s": lambda rated: percentile(rated.first_wait_s, 50),
    "first_wait_p99_s": lambda rated: percentile(rated.first_wait_s, 99),
    "stalls_per_answer": lambda rated: _share(rated.stalls, rated.answered),
    "qoe_mean": lambda rated: _mean(rated.qoe),
    "qoe_star_mean": lambda rated: _mean(rated.qoe_star),
    "qoe_star_p10": lambda rated: percentile(rated.qoe_star, 10),
    "met_share": lambda rated: _mean(rated.met),
    "smooth_goodput_tokens_per_s": lambda rated: np.asarray(rated.benefit.sum(-1) / rated.span_s),
    "smooth_goodput_share": lambda rated: _share(rated.benefit, rated.asked_tokens),
    "goodput_tokens_per_s": lambda rated: np.asarray((rated.tokens * rated.met).sum(-1) / rated.span_s),
    "goodput_share": lambda rated: _share(rated.tokens * rated.met, rated.asked_tokens),
}
"""Figures of a reader. Each but `stalls_per_answer` is over all requests that were sent."""

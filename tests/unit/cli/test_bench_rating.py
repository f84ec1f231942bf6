"""Figures of readers: every request that was sent counts, and tricks are not rewarded."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.cli.bench.latency import scheduled_figures, vllm_figures
from qlm.cli.bench.objectives import Slo
from qlm.cli.bench.rating import rate
from qlm.cli.bench.record import Chunk, Run, Sent, spread
from qlm.cli.bench.report import Judging, figures_of, report
from qlm.domain.streaming.reader import Reader

READER = Reader(1.0, 10.0)
NEVER = float("inf")


def sent(*times_s: float, at_s: float = 0.0, error: str | None = None, asked: int | None = None) -> Sent:
    chunks = tuple(Chunk(each, 1) for each in times_s)
    end_s = times_s[-1] if times_s else at_s
    return Sent(scheduled_s=at_s, sent_s=at_s, end_s=end_s, chunks=chunks, error=error, asked_tokens=asked)


def run(*requests: Sent) -> Run:
    return Run(requests=requests, counting="by hand")


def figures(*requests: Sent) -> dict[str, float]:
    return figures_of(rate([run(*requests)], READER))


FAST = sent(*(0.5 + 0.05 * token for token in range(20)))
LATE = sent(*(3.0 + 0.05 * token for token in range(20)))


def test_an_answer_in_time_has_the_best_of_all_figures() -> None:
    found = figures(FAST)
    assert found["idle_max_s"] == 0
    assert found["met_share"] == found["qoe_mean"] == found["qoe_star_p10"] == 1
    assert found["smooth_goodput_share"] == found["goodput_share"] == 1
    assert found["smooth_goodput_tokens_per_s"] == pytest.approx(20 / 1.45)


def test_a_delay_is_idle_time_and_costs_benefit() -> None:
    found = figures(LATE)
    assert found["idle_max_s"] == found["first_wait_p99_s"] == pytest.approx(2.0)
    assert found["met_share"] == found["goodput_tokens_per_s"] == 0
    assert found["smooth_goodput_share"] == pytest.approx(2 ** (-2.0 / 5.39))
    assert found["qoe_star_mean"] == pytest.approx(1.0 / (1.0 + 2.0))


@pytest.mark.parametrize(
    "failed",
    [
        sent(error="HTTP 429: full", asked=20),
        sent(0.5, 0.6, error="the stream was cut", asked=20),
        sent(error="unfinished after 300 s", asked=20),
        sent(error="of a file that has no lengths"),
        sent(),
    ],
)
def test_a_failed_request_stays_in_every_denominator(failed: Sent) -> None:
    found = figures(FAST, failed)
    assert found["idle_p50_s"] == 0
    assert found["idle_p99_s"] == found["idle_max_s"] == found["first_wait_p99_s"] == NEVER
    assert found["qoe_mean"] == found["qoe_star_mean"] == found["met_share"] == 0.5
    assert found["qoe_star_p10"] == 0
    assert found["smooth_goodput_share"] == found["goodput_share"] == 0.5
    whole = report([run(FAST, failed)], Judging(goodput_ms={"e2el": 5000.0}))
    assert (whole["requests"], whole["answered"], whole["failed"]) == (2, 1, 1)
    assert sum(whole["errors"].values()) == 1
    assert whole["scheduled"]["scheduled_good_share"] == 0.5
    assert whole["scheduled"]["scheduled_p99_ttft_ms"] == NEVER


def test_without_any_answer_all_is_worst_and_nothing_divides_by_zero() -> None:
    found = figures(sent(error="refused"))
    assert found["idle_p50_s"] == NEVER
    assert found["smooth_goodput_share"] == found["qoe_star_mean"] == found["stalls_per_answer"] == 0
    assert vllm_figures([run(sent(error="refused"))], {})["mean_ttft_ms"] is None


def test_dropping_a_late_request_never_gains() -> None:
    dropped = replace(sent(error="dropped", asked=20), end_s=LATE.end_s)
    keeps, drops = figures(FAST, LATE), figures(FAST, dropped)
    for name in ("qoe_star_mean", "smooth_goodput_tokens_per_s", "smooth_goodput_share"):
        assert drops[name] < keeps[name]
    assert drops["goodput_tokens_per_s"] == keeps["goodput_tokens_per_s"]
    assert drops["met_share"] == keeps["met_share"]


def test_holding_tokens_back_to_even_out_their_gaps_does_not_gain() -> None:
    bursts = sent(0.5, 0.52, 0.54, 1.6, 1.62, 1.64)
    smooth = sent(0.5, 0.9, 1.3, 1.7, 2.1, 2.5)
    quick = Reader(0.5, 10.0)
    raw, even = (figures_of(rate([run(each)], quick)) for each in (bursts, smooth))
    worst = [
        max(b.at_s - a.at_s for a, b in zip(s.chunks, s.chunks[1:], strict=False)) for s in (bursts, smooth)
    ]
    assert worst == pytest.approx([1.06, 0.4])
    assert even["idle_max_s"] >= raw["idle_max_s"]
    assert even["qoe_star_mean"] <= raw["qoe_star_mean"]
    assert even["smooth_goodput_share"] <= raw["smooth_goodput_share"]


@given(
    st.lists(st.floats(0, 3), min_size=1, max_size=12),
    st.integers(0, 11),
    st.floats(0.001, 5),
)
def test_no_later_token_raises_qoe_star_or_benefit(gaps: list[float], which: int, delay_s: float) -> None:
    times = [sum(gaps[: token + 1]) for token in range(len(gaps))]
    later = [at_s + delay_s * (token >= which) for token, at_s in enumerate(times)]
    before, after = (rate([run(sent(*each))], READER) for each in (times, later))
    assert after.qoe_star[0] <= before.qoe_star[0] + 1e-9
    assert after.benefit[0] <= before.benefit[0] + 1e-9


def test_latency_counts_from_the_schedule_even_if_the_client_was_late() -> None:
    late = Sent(scheduled_s=0.0, sent_s=2.0, end_s=2.6, chunks=(Chunk(2.5, 1), Chunk(2.6, 1)))
    assert figures(late)["idle_max_s"] == pytest.approx(1.5)
    assert scheduled_figures([run(late)], {})["scheduled_p50_ttft_ms"] == pytest.approx(2500)
    assert scheduled_figures([run(late)], {})["send_delay_max_ms"] == pytest.approx(2000)
    assert vllm_figures([run(late)], {})["mean_ttft_ms"] == pytest.approx(500)


def test_tokens_of_one_chunk_share_its_time() -> None:
    together = Sent(scheduled_s=0.0, sent_s=0.0, end_s=2.0, chunks=(Chunk(0.5, 1), Chunk(2.0, 4)))
    # The second token was due at 1.1 s; the last at 1.4 s, which the reader reaches 0.9 s late, too.
    assert figures(together)["idle_max_s"] == pytest.approx(0.9)
    assert figures(together)["stalls_per_answer"] == 1


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        (Slo(ttft_ms=500), True),
        (Slo(ttft_ms=499), False),
        (Slo(deadline_ms=1450), True),
        (Slo(deadline_ms=1400), False),
        (Slo(ttft_ms=500, tokens_per_s=20), True),
        (Slo(ttft_ms=400, tokens_per_s=20), False),
        (Slo(ttft_ms=500, tokens_per_s=10, deadline_ms=1000), False),
    ],
)
def test_an_objective_is_met_if_all_of_it_is(slo: Slo, met: bool) -> None:
    answer = sent(*(0.5 + token / 20 for token in range(20)))
    assert slo.met(answer) is met
    assert not slo.met(replace(answer, error="cut"))


@pytest.mark.parametrize("at_s", [0.0, 0.1, 0.3, 1234.7])
@pytest.mark.parametrize("slo", [Slo(1000, 10), Slo(ttft_ms=1000), Slo(deadline_ms=3900)], ids=str)
def test_an_answer_just_in_time_is_in_time_whenever_it_was_asked_for(at_s: float, slo: Slo) -> None:
    just = sent(*(at_s + 1 + token / 10 for token in range(30)), at_s=at_s)
    assert slo.met(just)
    assert not slo.met(replace(just, scheduled_s=at_s - 1e-5))
    assert figures(just)["met_share"] == 1
    assert figures(replace(just, scheduled_s=at_s - 1e-5))["met_share"] == 0


@pytest.mark.parametrize(
    ("tokens", "chunks", "expected"),
    [(4, 4, [1, 1, 1, 1]), (5, 2, [3, 2]), (2, 3, [1, 0, 1]), (1, 3, [1, 0, 0]), (0, 2, [0, 0]), (3, 0, [])],
)
def test_a_count_without_places_is_spread_evenly(tokens: int, chunks: int, expected: list[int]) -> None:
    assert [each.tokens for each in spread(tokens, [float(each) for each in range(chunks)])] == expected


@given(st.integers(0, 300), st.integers(1, 40))
def test_each_token_of_a_spread_count_is_in_its_chunk(tokens: int, chunks: int) -> None:
    expected = [0] * chunks
    for token in range(tokens):
        even = token * chunks // tokens
        expected[even if tokens >= chunks else round(token * (chunks - 1) / max(1, tokens - 1))] += 1
    assert [each.tokens for each in spread(tokens, [float(each) for each in range(chunks)])] == expected


def test_a_large_count_is_spread_without_counting_its_tokens() -> None:
    assert [each.tokens for each in spread(10**18, [0.0, 1.0, 2.0])] == [
        333333333333333334,
        333333333333333333,
        333333333333333333,
    ]


def test_a_warm_up_is_left_out_by_arrival_with_its_tokens_and_its_time() -> None:
    second = sent(10.5, 10.6, at_s=10.0)
    cut = run(FAST, second).without(1)
    assert cut.requests == (second,)
    assert cut.span_s == pytest.approx(0.6)

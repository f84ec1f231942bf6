from dataclasses import replace

import pytest

from qlm.domain.attainment import OutputTimes, attained
from qlm.domain.group import request_class
from qlm.domain.ids import ModelId, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.request import Answer, AnswerKind, RequestMetadata
from qlm.domain.sampling import Sampling
from qlm.domain.slo import BatchSlo, DeadlineSlo, ReadingSlo, Slo, TokenSlo
from qlm.gateway.core.session_events import SendFinal
from qlm.gateway.observability.metrics import GatewayMetrics

MS = 1_000_000


def metadata(slo: Slo) -> RequestMetadata:
    return RequestMetadata(
        id=RequestId("r"),
        cls=request_class(ModelId("m"), slo, 0),
        tenant="t",
        slo=slo,
        arrival_ns=0,
        prompt_tokens=5,
        sampling=Sampling(max_tokens=10),
        answer=Answer(kind=AnswerKind.COMPLETION),
    )


@pytest.mark.parametrize(
    ("slo", "first_ms", "ended_ms", "tokens", "met"),
    [
        (DeadlineSlo(deadline_ms=100), 5, 100, 10, True),
        (DeadlineSlo(deadline_ms=100), 5, 101, 10, False),
        (TokenSlo(ttft_ms=50), 50, 10_000, 10, True),
        (TokenSlo(ttft_ms=50), 51, 52, 10, False),
        (TokenSlo(ttft_ms=50, tpot_ms=10), 40, 130, 10, True),
        (TokenSlo(ttft_ms=50, tpot_ms=10), 40, 131, 10, False),
        (ReadingSlo(ttft_ms=50, tokens_per_s=100), 40, 140, 10, True),
        (ReadingSlo(ttft_ms=50, tokens_per_s=100), 40, 141, 10, False),
        (ReadingSlo(ttft_ms=50, tokens_per_s=100), None, 60, 0, False),
        (TokenSlo(ttft_ms=50, tpot_ms=10), None, 60, 0, False),
        (BatchSlo(), 5, 10**9, 10, None),
    ],
)
def test_an_objective_is_met_up_to_its_last_moment(
    slo: Slo, first_ms: int | None, ended_ms: int, tokens: int, met: bool | None
) -> None:
    times = OutputTimes(metadata(slo))
    if first_ms is not None:
        times.take(1, first_ms * MS)
        times.take_run(tokens - 1, ended_ms * MS)
    assert attained(metadata(slo), times, ended_ns=ended_ms * MS, tokens=tokens) is met


def reads(deliveries: list[tuple[int, int]]) -> bool | None:
    """Return whether a reader at 5 tokens per second, the first within a second, never waits."""
    subject = metadata(ReadingSlo(ttft_ms=1000, tokens_per_s=5))
    times = OutputTimes(subject)
    for tokens, at_ms in deliveries:
        times.take(tokens, at_ms * MS)
    last_ms = deliveries[-1][1]
    return attained(subject, times, ended_ns=last_ms * MS, tokens=sum(count for count, _at in deliveries))


def test_a_reader_with_an_early_first_token_may_get_the_others_slower() -> None:
    assert reads([(1, 200 + 240 * token) for token in range(11)])  # 4.2 per second, but all by 3 s


def test_a_reader_who_waits_in_the_middle_is_not_served_by_a_good_mean() -> None:
    assert not reads([(5, 1000), (1, 2860), (5, 2950)])


def test_requests_that_end_badly_count_as_violations_and_cancelled_ones_do_not() -> None:
    metrics = GatewayMetrics(classes_max=10)
    subject = metadata(DeadlineSlo(deadline_ms=100))
    times, none = OutputTimes(subject), OutputTimes(subject)
    times.take(1, MS)
    metrics.ended(subject, SendFinal(1, "", "stop", Outcome.STOP), times, MS)
    metrics.ended(subject, SendFinal(0, "", None, Outcome.ENGINE_LOST), none, MS)
    metrics.ended(subject, SendFinal(0, "", None, Outcome.CANCELLED), none, MS)
    text = metrics.render().decode()
    labels = '{model="m",slo_class="deadline-100ms"}'
    assert f"qlm_gateway_request_slo_attained_total{labels} 1.0" in text
    assert f"qlm_gateway_request_slo_violation_total{labels} 1.0" in text


def test_what_a_reader_lived_through_is_observed() -> None:
    metrics = GatewayMetrics(classes_max=10)
    subject = metadata(ReadingSlo(ttft_ms=1000, tokens_per_s=5))
    times = OutputTimes(subject)
    times.take(5, 1000 * MS)
    times.take(5, 3000 * MS)  # due from 2 s on
    metrics.ended(subject, SendFinal(10, "", "stop", Outcome.STOP), times, 3000 * MS)
    text = metrics.render().decode()
    labels = '{model="m",slo_class="ttft-1s-speed-5"}'
    assert f"qlm_gateway_request_idle_seconds_sum{labels} 1.0" in text
    assert f"qlm_gateway_request_stalls_total{labels} 1.0" in text
    # Half of the tokens are a second late, the reading takes 2 s: 1 / (1 + 0.5).
    assert f"qlm_gateway_request_qoe_ratio_sum{labels} 0.666" in text


def test_a_class_has_both_series_from_its_first_request_on() -> None:
    metrics = GatewayMetrics(classes_max=10)
    metrics.accepted(metadata(DeadlineSlo(deadline_ms=100)), "whole", 0.1)
    metrics.accepted(metadata(BatchSlo()), "whole", 0.1)
    text = metrics.render().decode()
    for name in ("attained", "violation"):  # else the ratio of one that misses all would be nothing, not 0
        series = [
            line for line in text.splitlines() if line.startswith(f"qlm_gateway_request_slo_{name}_total")
        ]
        assert series == [f'qlm_gateway_request_slo_{name}_total{{model="m",slo_class="deadline-100ms"}} 0.0']


def test_objectives_beyond_the_limit_share_a_label() -> None:
    metrics = GatewayMetrics(classes_max=2)
    for ttft_ms in (100, 200, 300, 400, 1000):
        subject = metadata(TokenSlo(ttft_ms=ttft_ms))
        metrics.accepted(replace(subject), "whole", 0.1)
    text = metrics.render().decode()
    assert 'qlm_gateway_accepted_total{kind="whole",model="m",slo_class="other"} 3.0' in text

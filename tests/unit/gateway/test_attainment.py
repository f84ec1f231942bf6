from dataclasses import replace
from typing import Any

import pytest

from qlm.domain.attainment import OutputTimes, attained, attainment, recorded_attainment
from qlm.domain.formats.extensions import RequestExtensions
from qlm.domain.group import request_class
from qlm.domain.ids import InstanceId, ModelId, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.request import Answer, AnswerKind, Event, RequestMetadata, RequestRecord, RequestState
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


def ended(slo: Slo, first_ms: int | None, ended_ms: int, tokens: int, **more: Any) -> RequestRecord:
    return RequestRecord(
        metadata=metadata(slo),
        state=RequestState.ENDED,
        output_tokens=tokens,
        outcome=more.pop("outcome", Outcome.LENGTH),
        first_token_ns=None if first_ms is None else first_ms * MS,
        ended_ns=ended_ms * MS,
        **more,
    )


@pytest.mark.parametrize(
    ("slo", "first_ms", "ended_ms", "tokens", "late_by_s"),
    [
        (DeadlineSlo(deadline_ms=100), 5, 1100, 10, 1.0),
        (DeadlineSlo(deadline_ms=100), 5, 90, 10, 0.0),
        (TokenSlo(ttft_ms=50), 1050, 1100, 10, 1.0),
        (TokenSlo(ttft_ms=50, tpot_ms=10), 40, 1130, 10, 1.0),  # its tokens were due by 130
        (TokenSlo(ttft_ms=50, tpot_ms=10), 1050, 1130, 10, 1.0),
        (ReadingSlo(ttft_ms=50, tokens_per_s=100), 40, 1140, 10, 1.0),
        (ReadingSlo(ttft_ms=50, tokens_per_s=100), 1050, 1060, 10, 1.0),
        (BatchSlo(), 5, 10**6, 10, None),
    ],
)
def test_the_gateway_and_a_record_say_by_how_much_an_answer_was_late(
    slo: Slo, first_ms: int, ended_ms: int, tokens: int, late_by_s: float | None
) -> None:
    times = OutputTimes(metadata(slo))
    times.take(1, first_ms * MS)
    times.take_run(tokens - 1, ended_ms * MS)
    seen = attainment(metadata(slo), times, outcome=Outcome.LENGTH, ended_ns=ended_ms * MS, tokens=tokens)
    recorded = recorded_attainment(ended(slo, first_ms, ended_ms, tokens), now_ns=10**12)
    for judged in (seen, recorded):
        assert judged.late_by_s == pytest.approx(late_by_s)
        assert judged.met is (None if late_by_s is None else late_by_s == 0)


def test_of_a_pace_and_a_deadline_beside_it_both_count() -> None:
    slo, both = ReadingSlo(ttft_ms=50, tokens_per_s=100), RequestExtensions(deadline_ms=500)

    def judged(first_ms: int, ended_ms: int, reader_late_s: float) -> tuple[bool | None, float | None]:
        record = ended(slo, first_ms, ended_ms, 10, reader_late_s=reader_late_s)
        return recorded_attainment(replace(record, metadata=replace(record.metadata, extensions=both)), 0)

    assert judged(40, 500, 0.0) == (True, 0.0)
    assert judged(40, 750, 0.0) == (False, 0.25)
    assert judged(40, 750, 1.5) == (False, 1.5)
    assert judged(40, 400, 1.5) == (False, 1.5)


def test_a_record_knows_of_a_reader_who_waited_in_the_middle() -> None:
    slo = ReadingSlo(ttft_ms=50, tokens_per_s=100)
    assert recorded_attainment(ended(slo, 40, 60, 10), 0).met
    assert recorded_attainment(ended(slo, 40, 60, 10, reader_late_s=2.5), 0) == (False, 2.5)


@pytest.mark.parametrize("outcome", [Outcome.EXPIRED, Outcome.FAILED, Outcome.OUTPUT_LOST])
def test_what_ends_without_an_answer_missed_its_objective_by_no_time(outcome: Outcome) -> None:
    late, batch = ended(DeadlineSlo(deadline_ms=100), None, 50, 0, outcome=outcome), BatchSlo()
    assert recorded_attainment(late, 0) == (False, None)
    assert recorded_attainment(ended(batch, None, 50, 0, outcome=outcome), 0) == (None, None)


def test_a_cancelled_request_is_neither_late_nor_in_time() -> None:
    cancelled = ended(DeadlineSlo(deadline_ms=100), None, 5000, 0, outcome=Outcome.CANCELLED)
    assert recorded_attainment(cancelled, 0) == (None, None)


def test_a_request_that_is_overdue_counts_as_late_before_its_end() -> None:
    def standing(slo: Slo, first_ms: int | None, now_ms: int) -> tuple[bool | None, float | None]:
        first_ns = None if first_ms is None else first_ms * MS
        record = RequestRecord(metadata=metadata(slo), state=RequestState.RUNNING, first_token_ns=first_ns)
        return recorded_attainment(record, now_ms * MS)

    assert standing(DeadlineSlo(deadline_ms=100), 10, 100) == (None, None)
    assert standing(DeadlineSlo(deadline_ms=100), 10, 600) == (False, 0.5)
    assert standing(TokenSlo(ttft_ms=100), None, 600) == (False, 0.5)
    assert standing(TokenSlo(ttft_ms=100), 350, 600) == (False, 0.25)
    assert standing(TokenSlo(ttft_ms=100), 50, 600) == (None, None)
    assert standing(BatchSlo(), None, 10**6) == (None, None)


def test_a_reader_whose_next_token_is_overdue_waits_before_it_comes() -> None:
    slo = ReadingSlo(ttft_ms=50, tokens_per_s=10)

    def reading(now_ms: int, tokens: int = 3, **more: Any) -> tuple[bool | None, float | None]:
        fields: dict[str, Any] = {"first_token_ns": 40 * MS, "reader_late_s": 0.0, **more}
        record = RequestRecord(
            metadata=metadata(slo), state=RequestState.RUNNING, output_tokens=tokens, **fields
        )
        return recorded_attainment(record, now_ms * MS)

    assert reading(350) == (None, None)  # token 3 is due now
    assert reading(850) == (False, 0.5)
    assert reading(850, reader_late_s=0.75) == (False, 0.75)
    assert reading(5000, tokens=10) == (None, None)  # all that it may have
    assert reading(5000, end_asked=Outcome.STOP) == (None, None)  # it met a stop text


def test_an_ended_request_keeps_its_last_instance() -> None:
    went = [("accepted", None), ("leased", "a"), ("returned", "a"), ("leased", "b"), ("ended", "b")]
    events = tuple(Event(n, what, "", InstanceId(on) if on else None) for n, (what, on) in enumerate(went))
    assert ended(BatchSlo(), 1, 2, 3, events=events).instance == "b"
    assert ended(BatchSlo(), 1, 2, 3, events=events[:1]).instance is None


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
    for outcome, output in ((Outcome.STOP, times), (Outcome.ENGINE_LOST, none), (Outcome.CANCELLED, none)):
        judged = attainment(subject, output, outcome=outcome, ended_ns=MS, tokens=1)
        metrics.ended(subject, SendFinal(1, "", None, outcome, attainment=judged), output, MS)
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

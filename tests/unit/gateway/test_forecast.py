"""What admission makes of the controller's forecast, as it ages and as requests come."""

import logging
from collections.abc import Mapping
from dataclasses import replace

import orjson
import pytest

from qlm.cli.runtime.clock import SystemClock
from qlm.domain.formats.extensions import RequestExtensions
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.ports.published import PublishedKind
from qlm.domain.slo import ReadingSlo
from qlm.gateway.core.admission import Admit, Load, Refuse, decide
from qlm.gateway.core.forecast import (
    SIGNAL_OLD_S,
    AdmissionQuery,
    CurrentForecast,
    ExpectedTimes,
    admission_query,
    current_forecast,
    shortfall,
)
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.sessions.load.forecast_watch import ForecastWatch
from qlm.planner.admission_signal import AdmissionSignal, ClassForecast, DepartureCurve, signal_to_plain
from qlm.rct_estimator.normal import Normal
from qlm.store.embedded.memory import MemoryStore
from support.requests import a_request

M = ModelId("m")
CLS = RequestClass(model=M, slo="deadline-16s", target_ms=16_000.0)
OTHER = RequestClass(model=M, slo="batch")
NOW_NS = 1_700_000_000_000_000_000
S = 1_000_000_000

FORECAST = ClassForecast(
    cls=CLS,
    waiting=80,
    instance=InstanceId("i"),
    wait=Normal(20.0, 4.0),
    first_token=Normal(21.0, 4.0),
    completion=Normal(25.0, 5.0),
    alone_first_token=Normal(1.0),
    alone_completion=Normal(5.0, 1.0),
    token_s=0.1,
    each_s=0.25,
    departures=DepartureCurve((0.0, 20.0), (0.0, 80.0)),
)
SIGNAL = AdmissionSignal(
    at_ms=NOW_NS // 1_000_000,
    departures=DepartureCurve((0.0, 10.0, 30.0), (0.0, 60.0, 100.0)),
    classes={CLS: FORECAST},
)


def seen(age_s: float = 0.0, arrived: Mapping[ModelId, int] | None = None) -> CurrentForecast:
    found = current_forecast(SIGNAL, arrived or {}, NOW_NS + round(age_s * S))
    assert found is not None
    return found


def query(
    target_s: float | None, p_met_min: float, *, first: bool = False, max_tokens: int = 1000
) -> AdmissionQuery:
    return AdmissionQuery(target_s=target_s, first_token=first, max_tokens=max_tokens, p_met_min=p_met_min)


@pytest.mark.parametrize(
    ("age_s", "requests", "cls", "departure_s"),
    [
        (0.0, 30, None, 5.0),
        (0.0, 80, None, 20.0),
        (4.0, 30, None, 5.0),
        (5.0, 50, None, 15.0),
        (0.0, 100, None, 30.0),
        (0.0, 110, None, 33.0),
        (25.0, 30, None, 5.0 + 20 * 0.3),
        (0.0, 20, CLS, 5.0),
        (10.0, 20, CLS, 5.0),
        (0.0, 20, OTHER, None),
    ],
)
def test_room_comes_as_what_waits_leaves(
    age_s: float, requests: float, cls: RequestClass | None, departure_s: float | None
) -> None:
    assert seen(age_s).departure_s(requests, cls) == (
        None if departure_s is None else pytest.approx(departure_s)
    )


def test_where_nothing_leaves_no_room_is_forecast() -> None:
    for curve in (DepartureCurve(), DepartureCurve((0.0, 5.0), (0.0, 0.0))):
        assert replace(seen(), signal=replace(SIGNAL, departures=curve)).departure_s(1) is None


@pytest.mark.parametrize("age_s", [SIGNAL_OLD_S + 1, -SIGNAL_OLD_S - 1])
def test_an_old_forecast_says_nothing(age_s: float) -> None:
    assert current_forecast(SIGNAL, {}, NOW_NS + round(age_s * S)) is None
    assert current_forecast(None, {}, NOW_NS) is None


def test_a_forecast_of_the_near_future_counts_as_made_now() -> None:
    assert seen(-5.0).age_s == 0.0


def expected(age_s: float = 0.0, arrived: int = 0, max_tokens: int = 1000) -> ExpectedTimes:
    found = seen(age_s, {M: arrived, ModelId("n"): 1000}).expected(CLS, max_tokens)
    assert found is not None
    return found


def test_waits_get_shorter_with_time_and_longer_with_what_came() -> None:
    assert expected().completion == FORECAST.completion
    assert expected(age_s=2.0).completion.mean == pytest.approx(23.0)
    assert expected(age_s=25.0).wait.mean == pytest.approx(0.0)
    assert expected(arrived=8).first_token.mean == pytest.approx(23.0)
    assert expected(age_s=2.0, arrived=8).wait == Normal(20.0, 4.0)
    assert seen().expected(OTHER, 10) is None


def test_an_answer_that_is_cut_off_ends_sooner() -> None:
    assert expected(max_tokens=11).completion.mean == pytest.approx(22.0)
    assert expected(max_tokens=11).alone_completion.mean == pytest.approx(2.0)
    assert expected(max_tokens=41).completion == FORECAST.completion


def test_a_limit_ends_an_answer_on_an_idle_cluster_at_the_same_share_of_its_tokens() -> None:
    fast = replace(FORECAST, alone_completion=Normal(2.0, 1.0))  # a token takes a quarter of the time there
    of_class = replace(seen(), signal=replace(seen().signal, classes={CLS: fast}))
    for max_tokens, end_s in ((11, 1.25), (41, 2.0), (100, 2.0)):
        found = of_class.expected(CLS, max_tokens)
        assert found is not None and found.alone_completion.mean == pytest.approx(end_s)


def test_an_objective_that_is_met_often_enough_misses_nothing() -> None:
    for enough in (query(None, 0.9), query(16.0, 0.0), query(40.0, 0.9), query(25.0, 0.5)):
        assert shortfall(expected(), enough) is None
    assert shortfall(expected(), query(25.0, 0.51)) is not None
    assert shortfall(expected(), query(22.0, 0.5, first=True)) is None
    assert shortfall(expected(), query(20.0, 0.5, first=True)) is not None


@pytest.mark.parametrize("p_met_min", [0.1, 0.5, 0.9])
def test_after_the_retry_time_the_objective_is_met_as_required(p_met_min: float) -> None:
    missing = shortfall(expected(), query(16.0, p_met_min))
    assert missing is not None and missing.retry_s is not None
    assert 0 < missing.retry_s <= 20.0
    later = expected(age_s=missing.retry_s)
    assert later.completion.at_most(16.0) == pytest.approx(p_met_min)
    assert missing.p_met == FORECAST.completion.at_most(16.0)
    assert missing.why == "the end of the answer would come in 25.0 s, the objective is 16 s"


def test_what_an_idle_cluster_would_miss_never_comes() -> None:
    missing = shortfall(expected(), query(5.0, 0.9))
    assert missing is not None and missing.retry_s is None


def test_of_two_objectives_the_less_likely_one_counts() -> None:
    both = replace(query(40.0, 0.9, first=True), deadline_s=24.0)
    missing = shortfall(expected(), both)
    assert missing is not None
    assert missing.why == "the end of the answer would come in 25.0 s, the objective is 24 s"
    assert shortfall(expected(), replace(both, deadline_s=40.0)) is None
    late = shortfall(expected(), replace(both, target_s=15.0))
    assert late is not None and late.why.startswith("the first token")


def test_the_retry_time_is_that_at_which_all_objectives_are_met() -> None:
    first = query(15.0, 0.9, first=True)
    alone, both = shortfall(expected(), first), shortfall(expected(), replace(first, deadline_s=12.0))
    assert alone is not None and both is not None
    assert alone.retry_s is not None and both.retry_s is not None
    assert both.retry_s > alone.retry_s
    never = shortfall(expected(), replace(first, deadline_s=4.0))
    assert never is not None and never.retry_s is None, "an idle cluster needs 5 s for the answer"


LIMITS = GatewayLimits(queue_depth_max=100, retry_after_max_s=60)
LOAD = Load(at_ns=0, waiting=100, finished_per_s=0.5)


def refused(*given: object) -> Refuse:
    verdict = decide(*given)  # type: ignore[arg-type]
    assert isinstance(verdict, Refuse)
    return verdict


def test_a_full_queue_sends_away_until_room_is_forecast() -> None:
    load = replace(LOAD, waiting=128)
    assert refused(load, LIMITS, CLS, 1, seen()).retry_after_s == pytest.approx(5.0)
    assert refused(replace(LOAD, waiting=1000), LIMITS, CLS, 1, seen()).retry_after_s == 60
    assert refused(LOAD, LIMITS, CLS, 1, seen()).retry_after_s == 1.0
    assert refused(load, LIMITS, CLS, 1).retry_after_s == pytest.approx(30 / 0.5), "without a forecast"


def test_a_full_class_sends_away_until_room_in_it_is_forecast() -> None:
    limits = GatewayLimits(class_depth_max=50)
    load = Load(at_ns=0, waiting=70, waiting_by_class={CLS: 69, OTHER: 59}, finished_per_s=10)
    assert refused(load, limits, CLS, 1, seen()).retry_after_s == pytest.approx(5.0)
    assert refused(load, limits, OTHER, 1, seen()).retry_after_s == 1.0, "unknown to the forecast"


def test_too_many_prompt_tokens_send_away_until_their_requests_have_left() -> None:
    limits = GatewayLimits(queue_prompt_tokens_max=1000)
    load = Load(at_ns=0, waiting=60, waiting_prompt_tokens=1000.0, finished_per_s=0.001)
    verdict = refused(load, limits, CLS, 480, seen())
    assert verdict.reason == "queue_tokens_full"
    assert verdict.retry_after_s == pytest.approx(5.0)


def test_an_objective_that_will_be_missed_is_refused_only_if_that_is_asked_for() -> None:
    free = replace(LOAD, waiting=80)
    assert decide(free, LIMITS, CLS, 1, seen(), query(16.0, 0.0)) == Admit()
    assert decide(free, LIMITS, OTHER, 1, seen(), query(16.0, 0.9)) == Admit(), "unknown to the forecast"
    assert decide(free, LIMITS, CLS, 1, None, query(16.0, 0.9)) == Admit(), "no forecast"
    verdict = refused(free, LIMITS, CLS, 1, seen(), query(16.0, 0.5))
    assert (verdict.status, verdict.reason) == (429, "objective_unreachable")
    assert verdict.retry_after_s == pytest.approx(9.0)
    assert "the end of the answer would come in 25.0 s, the objective is 16 s" in verdict.message
    never = refused(free, LIMITS, CLS, 1, seen(), query(0.5, 0.5, first=True))
    assert never.retry_after_s is None
    assert "first token would come in 21.0 s" in never.message and "idle cluster" in never.message


def test_what_a_request_asks_is_read_off_it() -> None:
    metadata = replace(a_request("r", deadline_ms=2500).metadata(), extensions=RequestExtensions(p_met=0.5))
    wanted = admission_query(metadata)
    assert (wanted.target_s, wanted.first_token, wanted.p_met_min) == (2.5, False, 0.5)
    assert wanted.max_tokens == metadata.sampling.max_tokens
    assert admission_query(a_request().metadata()).p_met_min == 0.0
    assert wanted.deadline_s is None
    reader = replace(
        metadata,
        slo=ReadingSlo(ttft_ms=1000.0, tokens_per_s=20.0),
        extensions=RequestExtensions(p_met=0.5, deadline_ms=9000.0),
    )
    wanted = admission_query(reader)
    assert (wanted.target_s, wanted.first_token, wanted.deadline_s) == (1.0, True, 9.0)


async def test_requests_count_until_a_forecast_knows_them(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore(SystemClock())
    watch = ForecastWatch(store)
    watch.count_accepted(M, NOW_NS)
    await watch.refresh()
    assert watch.current(NOW_NS) is None, "there is none yet"
    await store.publish(PublishedKind.SIGNAL, orjson.dumps(signal_to_plain(SIGNAL)))
    await watch.refresh()
    for after_s in (1, 2, 3):
        watch.count_accepted(M, NOW_NS + after_s * S)
    assert _came(watch, 3) == {M: 3}
    newer = replace(SIGNAL, at_ms=SIGNAL.at_ms + 2500)
    await store.publish(PublishedKind.SIGNAL, orjson.dumps(signal_to_plain(newer)))
    await watch.refresh()
    assert _came(watch, 3) == {M: 1}
    with caplog.at_level(logging.WARNING):
        for data in (b"{", b'{"version": 9}'):
            await store.publish(PublishedKind.SIGNAL, data)
            await watch.refresh()
            assert watch.current(NOW_NS) is None
    assert len(caplog.records) == 1, "said once"
    await store.publish(PublishedKind.SIGNAL, orjson.dumps(signal_to_plain(newer)))
    await watch.refresh()
    assert _came(watch, 3) == {M: 0}


def _came(watch: ForecastWatch, after_s: int) -> dict[ModelId, int]:
    found = watch.current(NOW_NS + after_s * S)
    assert found is not None
    return dict(found.arrived)

"""What a controller has learned: written, read again, aged, and assumed of classes that have not answered."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from qlm.controller.core.estimating.arrivals import KEPT_S, SILENT_MAX, Arrivals, update_arrivals
from qlm.controller.core.estimating.state import NOTHING_LEARNED, EstimatorState, learn
from qlm.controller.core.expected.log import NOTHING_FORECAST
from qlm.controller.core.history.classes import (
    CLASSES_MAX,
    FORMER_ANSWERS_MAX,
    HALF_LIFE_S,
    ClassRecord,
    update_records,
)
from qlm.controller.core.history.codec import history_from_plain, history_to_plain
from qlm.controller.core.history.history import RATES_MAX, History, recalled, remembered
from qlm.controller.core.history.model_answers import USUAL_TOKENS
from qlm.controller.core.history.speeds import SpeedRecord
from qlm.controller.shell.history import KEEP_EVERY_NS, HistoryKeeper
from qlm.domain.errors import InvalidValueError, StoreUnavailableError
from qlm.domain.fleet import OpenAnswers, ServedWork
from qlm.domain.group import RequestClass
from qlm.domain.ids import ControllerId, InstanceId, ModelId
from qlm.domain.leadership import Term
from qlm.domain.length_histogram import LengthHistogram, length_bin
from qlm.domain.ports.published import PublishedKind
from qlm.domain.shell.faults import FaultLog
from qlm.domain.view import ClassView, ClusterView
from qlm.rct_estimator.correction import PRIOR_LOG_SD, Correction
from qlm.rct_estimator.forecast_errors import ForecastErrors, Turn
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.output_length import length_counts
from qlm.store.embedded.memory import MemoryStore
from support.batch_slots import draw
from support.estimating import (
    BATCH,
    CHAT,
    KIND,
    NOW_NS,
    OTHER,
    STREAM,
    M,
    S,
    cluster,
    counted,
    instance,
    seen,
    steady_fleet,
    view_of,
)

FLEET = steady_fleet(16)
GPU_0 = InstanceId("gpu-0")


def same(tokens: float, answers: int) -> LengthHistogram:
    return counted(np.full(answers, tokens))


def learned(*classes: ClassView, state: EstimatorState = NOTHING_LEARNED, at_s: float = 0) -> EstimatorState:
    return learn(state, view_of(*classes), now_ns=NOW_NS + round(at_s * S), fleet=FLEET)


def mean_of(state: EstimatorState, cls: RequestClass) -> float:
    return state.classes[cls].workload.output.mean


def through_json(history: History) -> History:
    return history_from_plain(orjson.loads(orjson.dumps(history_to_plain(history))))


def after_restart(state: EstimatorState, *, age_s: float = 0.0) -> EstimatorState:
    """What the next controller knows that reads what this one has written."""
    return recalled(through_json(remembered(state, NOW_NS)), NOW_NS + round(age_s * S))


def test_lengths_prompts_rates_and_speeds_outlive_a_controller() -> None:
    lengths = counted(draw(np.random.default_rng(5), 300))
    state = learned(seen(CHAT, lengths))
    for number in range(1, 31):
        view = replace(seen(CHAT, lengths), finished=300 + 20 * number, accepted=301 + 20 * number)
        state = learned(view, state=state, at_s=10 * number)
    slow = Correction(log_ratio=0.3, log_var=0.001)
    history = replace(state.instances[GPU_0], corrections={M: slow})
    state = replace(state, instances={GPU_0: history})
    later = through_json(remembered(state, NOW_NS + 300 * S))
    fresh = recalled(later, NOW_NS + 310 * S)
    assert fresh.arrivals[CHAT].accepted_rps == pytest.approx(2.0, rel=0.01)
    assert fresh.arrivals[CHAT].rate_rps == pytest.approx(2.0, rel=0.01)
    fresh = learned(state=fresh, at_s=311)
    assert mean_of(fresh, CHAT) == pytest.approx(mean_of(state, CHAT), rel=0.03), "no request has come"
    assert (CHAT, KIND) in fresh.times.entries
    assert fresh.classes[CHAT].mean_prompt_tokens == 1.0
    known = fresh.instances[GPU_0].corrections[M]
    assert [known.log_ratio, known.log_var] == pytest.approx([0.3, 0.001], rel=0.01)


def test_a_store_that_kept_its_counts_is_believed_and_an_emptied_one_is_not() -> None:
    state = after_restart(learned(seen(CHAT, same(100, 50))))
    kept = learned(seen(CHAT, same(20, 51)), state=state)
    assert mean_of(kept, CHAT) < 30, "the counts of the store include what was recalled"
    emptied = learned(seen(CHAT, same(100, 1)), state=state)
    assert emptied.records[CHAT].former_answers == pytest.approx(50, rel=0.01)
    assert mean_of(emptied, CHAT) == pytest.approx(100, rel=0.1)
    again = learned(seen(CHAT), state=learned(seen(CHAT, same(100, 50))))
    assert again.records[CHAT].former_answers == pytest.approx(50, rel=0.01), "emptied while it runs"


def test_answers_of_its_own_outweigh_a_history_of_other_lengths() -> None:
    state = after_restart(learned(seen(CHAT, same(20, 3000))))
    assert state.records[CHAT].former_answers == pytest.approx(FORMER_ANSWERS_MAX, rel=0.01)
    answers = [mean_of(learned(seen(CHAT, same(200, n)), state=state), CHAT) for n in (0, 100, 900)]
    assert answers == pytest.approx([20, 110, 180], rel=0.08)


@pytest.mark.parametrize(("age_s", "weight"), [(0, 100), (HALF_LIFE_S, 50), (7 * HALF_LIFE_S, 100 / 128)])
def test_lengths_lose_weight_with_age_once(age_s: float, weight: float) -> None:
    state = learned(seen(CHAT, same(20, 3000)))
    once = after_restart(state, age_s=age_s)
    assert once.records[CHAT].former_answers == pytest.approx(weight, rel=0.01)
    assert after_restart(once, age_s=age_s).records[CHAT].former_answers == pytest.approx(weight, rel=0.01)


def test_rates_of_yesterday_are_no_rates_but_its_lengths_are_an_assumption() -> None:
    state = learned(seen(CHAT, same(20, 100)))
    assert CHAT in after_restart(state, age_s=KEPT_S / 2).arrivals
    old = after_restart(state, age_s=86_400)
    assert CHAT not in old.arrivals
    back = learned(replace(seen(STREAM), finished=0), state=old)
    assert mean_of(back, STREAM) < 40


def test_speeds_become_uncertain_again() -> None:
    record = SpeedRecord(at_ns=0, accelerator=KIND, correction=Correction(log_ratio=0.3, log_var=1e-4))
    day, month = (record.aged(round(days * 86_400 * 1e9)).correction.log_var for days in (1, 30))
    assert [day, month] == pytest.approx([PRIOR_LOG_SD**2 / 2, PRIOR_LOG_SD**2])


def test_the_speed_of_an_instance_is_known_when_it_is_back() -> None:
    state = learned(seen(CHAT))
    slow = Correction(log_ratio=0.3, log_var=0.001)
    state = replace(state, instances={GPU_0: replace(state.instances[GPU_0], corrections={M: slow})})
    gone = learn(state, ClusterView(classes=(), instances=(), queues=()), now_ns=NOW_NS + S, fleet=FLEET)
    assert GPU_0 not in gone.instances
    back = learned(seen(CHAT), state=gone, at_s=2)
    assert back.instances[GPU_0].corrections == {M: slow}
    other = replace(instance(), accelerator="B200")
    moved = cluster(seen(CHAT), instances=(other,), queues={})
    known = learn(gone, moved, now_ns=NOW_NS + 2 * S, fleet=FLEET).instances[GPU_0]
    assert not known.corrections, "an instance of that name on another accelerator"


def test_a_class_without_answers_is_like_its_kind_then_like_its_model_then_like_a_usual_model() -> None:
    def assumed(*others: ClassView) -> float:
        return mean_of(learned(seen(CHAT), *others), CHAT)

    like_chat = replace(CHAT, slo="deadline-64s", target_ms=70_000.0)
    usual = assumed(seen(OTHER, same(700, 500)))
    assert usual == pytest.approx(USUAL_TOKENS, rel=0.1), "other models say nothing"
    model = assumed(seen(BATCH, same(700, 500)))
    assert model == pytest.approx(700, rel=0.1)
    kind = assumed(seen(BATCH, same(700, 500)), seen(like_chat, same(30, 500)))
    assert kind < 60
    few = [assumed(seen(BATCH, same(20, n))) for n in (0, 2, 8, 30)]
    assert few == sorted(few, reverse=True) and few[1] < 0.9 * few[0]


def test_answers_that_run_long_lengthen_what_is_assumed_of_their_model() -> None:
    """The first answers of a model with long ones have not ended when it is placed."""
    running = OpenAnswers(cls=BATCH, counts=((length_bin(400), 12, 12 * 400),))
    at_work = replace(
        instance(running=12), answers=(running,), work=ServedWork(request_s=100.0, ended=0, busy_s=10.0)
    )
    view = cluster(seen(CHAT), seen(BATCH), instances=(at_work,), queues={})
    state = learn(NOTHING_LEARNED, view, now_ns=NOW_NS, fleet=FLEET)
    assert mean_of(state, BATCH) > 450
    assert mean_of(state, CHAT) > 300


def test_a_silent_class_keeps_its_rate_and_times_and_a_new_one_is_counted_from_the_first_view() -> None:
    """A class of which nothing waits now and then was dropped before its second reading."""
    state = learned()
    state = learned(replace(seen(CHAT), accepted=6), state=state, at_s=5)
    assert state.arrivals[CHAT].accepted_rps == pytest.approx(6 / 5)
    for at_s in range(6, 100):
        state = learned(state=state, at_s=at_s)
    assert (CHAT, KIND) in state.times.entries
    back = learned(replace(seen(CHAT), accepted=110), state=state, at_s=110)
    assert back.arrivals[CHAT].accepted_rps == pytest.approx(1.0, rel=0.2)
    gone = learned(state=back, at_s=111 + KEPT_S)
    assert CHAT not in gone.arrivals and (CHAT, KIND) not in gone.times.entries
    assert CHAT in gone.records, "its lengths outlive its rate"


def late_ends(outcomes: int) -> ForecastErrors:
    errors = NOTHING_FORECAST.ends
    for _ in range(outcomes):
        errors = errors.after(Turn.SWAP, 20.0, 90.0)
    return errors


def test_errors_of_forecasts_outlive_a_controller_and_lose_weight() -> None:
    errors = late_ends(40)
    state = replace(learned(seen(CHAT)), forecasts=replace(NOTHING_FORECAST, ends=errors))
    now, later, former = (
        each.forecasts.ends.corrected(Turn.SWAP, Normal(20.0)).mean
        for each in (after_restart(state), after_restart(state, age_s=3 * HALF_LIFE_S), NOTHING_LEARNED)
    )
    assert now == pytest.approx(errors.corrected(Turn.SWAP, Normal(20.0)).mean, rel=1e-3)
    kept = after_restart(state).forecasts.ends.counts.sum()
    assert kept == pytest.approx(errors.counts.sum(), rel=0.01)
    assert former < later < now


def test_what_is_kept_is_bounded_and_the_latest_stays() -> None:
    classes = [replace(CHAT, slo=f"deadline-{n}ms") for n in range(CLASSES_MAX + 5)]
    records: Mapping[RequestClass, ClassRecord] = {}
    arrivals: Mapping[RequestClass, Arrivals] = {}
    for at in range(0, len(classes), 67):
        view = view_of(*(seen(cls) for cls in classes[at : at + 67]))
        records = update_records(view, NOW_NS + at, set(), records)
        arrivals = update_arrivals(view, NOW_NS + at, arrivals)
    assert len(records) == CLASSES_MAX and classes[-1] in records and classes[0] not in records
    assert len(arrivals) <= SILENT_MAX + 67
    known = History(at_ns=NOW_NS, classes=records, arrivals={cls: arrivals[cls] for cls in classes[-200:]})
    assert len(recalled(through_json(known), NOW_NS).arrivals) == RATES_MAX


def a_history() -> dict[str, Any]:
    plain: dict[str, Any] = orjson.loads(
        orjson.dumps(history_to_plain(remembered(learned(seen(CHAT, same(20, 10))), NOW_NS)))
    )
    plain["speeds"] = [
        {"instance": "gpu-0", "model": "m", "accelerator": "A10", "at_ns": 1}
        | {"log_ratio": 0.1, "log_var": 0.01, "observed_var": 0.01, "observed_weight": 3.0}
    ]
    return plain


def test_a_history_is_read_as_it_was_written() -> None:
    """Later versions may add fields; this one leaves them out."""
    plain = a_history()
    read = history_from_plain(plain | {"later": 1})
    assert orjson.loads(orjson.dumps(history_to_plain(read))) == plain
    counts = read.classes[CHAT].counts
    assert np.allclose(counts.ended, length_counts(same(20, 10)).ended)
    assert [counts.answers, counts.all_tokens] == pytest.approx([10, 200])


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("version",), 2),
        (("classes",), {}),
        (("classes", 0, "finished"), -1),
        (("classes", 0, "lengths"), [[99, 1, 1, 1]]),
        (("classes", 0, "lengths"), [[3, 1, 1e300, 1]]),
        (("classes", 0, "lengths"), [[3, 1, None, 1]]),
        (("classes", 0, "cls", "model"), 7),
        (("classes", 0, "cls", "late"), "no"),
        (("forecast_errors", "waits"), [[3, 0, 0, 1.0]]),
        (("forecast_errors", "ends"), [[0, 0, 0.5, 1.0]]),
        (("classes", 0, "arrivals"), {}),
        (("classes", 0, "arrivals", "asked"), "many"),
        (("speeds", 0, "log_ratio"), 50.0),
        (("speeds", 0, "accelerator"), ""),
    ],
)
def test_what_is_no_history_is_refused_by_name(path: tuple[Any, ...], wrong: object) -> None:
    plain = a_history()
    place: Any = plain
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = wrong
    with pytest.raises(InvalidValueError):
        history_from_plain(plain)


class Clock:
    def now_ns(self) -> int:
        return NOW_NS


async def led(store: MemoryStore) -> Term:
    return (await store.acquire_leadership(ControllerId("one"), 3600.0)).term


async def test_it_is_kept_every_half_minute_and_recalled_once() -> None:
    store = MemoryStore(Clock())
    term, state = await led(store), learned(seen(CHAT, same(20, 10)))
    keeper = HistoryKeeper(store, FaultLog())
    await keeper.keep_now(state, NOW_NS, term)
    assert await store.published(PublishedKind.HISTORY) is None, (
        "what another kept is not replaced before it was read"
    )
    assert await keeper.recall(state, NOW_NS) is state
    await keeper.keep(state, NOW_NS + KEEP_EVERY_NS - 1, term)
    assert await store.published(PublishedKind.HISTORY) is None
    await keeper.keep(state, NOW_NS + KEEP_EVERY_NS, term)
    kept = await store.published(PublishedKind.HISTORY)
    assert kept is not None
    fresh = HistoryKeeper(store, FaultLog())
    recalled_state = await fresh.recall(NOTHING_LEARNED, NOW_NS)
    assert CHAT in recalled_state.records
    assert await fresh.recall(state, NOW_NS) is state, "once"


async def test_a_term_begins_with_the_errors_that_another_leader_kept_and_not_with_its_own() -> None:
    store = MemoryStore(Clock())
    term, state = await led(store), learned(seen(CHAT, same(20, 10)))
    keeper, leader = HistoryKeeper(store, FaultLog()), HistoryKeeper(store, FaultLog())
    await keeper.recall(state, NOW_NS)
    assert await keeper.take_over(state, NOW_NS) is state, "nobody has kept any"
    await leader.recall(state, NOW_NS)
    taught = replace(state, forecasts=replace(NOTHING_FORECAST, ends=late_ends(1)))
    await leader.keep_now(taught, NOW_NS, term)
    assert await leader.take_over(state, NOW_NS) is state, "it kept them itself"
    taken = await keeper.take_over(state, NOW_NS)
    assert taken.forecasts.ends.counts.sum() == pytest.approx(1.0, rel=0.01)
    assert taken.records is state.records
    assert await keeper.take_over(state, NOW_NS) is state, "once"
    await store.publish(PublishedKind.HISTORY, b"[]")
    assert await keeper.take_over(state, NOW_NS) is state, "what cannot be read"


@pytest.mark.parametrize("foreign", [b"", b"\xff\x00", b"[]", b'{"version": 2}'])
async def test_what_cannot_be_read_is_reported_once_and_replaced(
    foreign: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore(Clock())
    await store.publish(PublishedKind.HISTORY, foreign)
    term, state, keeper = (
        await led(store),
        learned(seen(CHAT, same(20, 10))),
        HistoryKeeper(store, FaultLog()),
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert await keeper.recall(state, NOW_NS) is state
    (reported,) = caplog.messages
    assert "learning begins anew" in reported
    await keeper.keep(state, NOW_NS + KEEP_EVERY_NS, term)
    kept = await store.published(PublishedKind.HISTORY)
    assert kept is not None and CHAT in history_from_plain(orjson.loads(kept)).classes


class AwayStore(MemoryStore):
    away = True

    async def published(self, kind: PublishedKind) -> bytes | None:
        if self.away:
            raise StoreUnavailableError("away")
        return await super().published(kind)

    async def publish(self, kind: PublishedKind, data: bytes, term: Term | None = None) -> None:
        if self.away:
            raise StoreUnavailableError("away")
        await super().publish(kind, data, term)


async def test_a_store_that_is_away_delays_the_recall_and_stops_no_planning() -> None:
    store = AwayStore(Clock())
    keeper, state = HistoryKeeper(store, FaultLog()), learned(seen(CHAT, same(20, 10)))
    with pytest.raises(StoreUnavailableError):
        await keeper.recall(state, NOW_NS)
    store.away = False
    assert await keeper.recall(state, NOW_NS) is state
    store.away = True
    await keeper.keep_now(state, NOW_NS, None)
    store.away = False
    await keeper.keep_now(state, NOW_NS, None)
    assert await store.published(PublishedKind.HISTORY) is not None


def test_models_of_the_history_need_not_be_served_any_more() -> None:
    gone = replace(CHAT, model=ModelId("gone"))
    state = after_restart(learned(seen(gone, same(20, 10)), seen(CHAT, same(20, 10))))
    after = learned(state=state, at_s=1)
    assert {cls.model for cls, _kind in after.times.entries} == {M}

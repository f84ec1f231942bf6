"""The forecast for admission: against the plan it is made of, and read back from its plain form."""

import itertools
from dataclasses import replace

import orjson
import pytest

from qlm.controller.core import admission_signal as signal_module
from qlm.controller.core.admission_signal import admission_signal, departure_curve
from qlm.controller.core.decide import ControllerSettings, Decision, decide
from qlm.controller.core.estimating.snapshot import take_snapshot
from qlm.controller.core.estimating.state import NOTHING_LEARNED, learn
from qlm.controller.core.expected.waits import expected_waits
from qlm.controller.core.fleet import Fleet
from qlm.controller.core.problem import make_problem
from qlm.domain.errors import InvalidValueError
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId
from qlm.domain.length_histogram import NO_LENGTHS
from qlm.planner.admission_signal import (
    DEPARTURE_POINTS_MAX,
    AdmissionSignal,
    ClassForecast,
    signal_from_plain,
    signal_to_plain,
)
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.problem import Kind
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.timeline import Served, serve
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.throughput import steady_state
from qlm.rct_estimator.workload import Workload
from support.estimating import (
    BATCH,
    CHAT,
    COST,
    KIND,
    LENGTHS,
    NOW_NS,
    OTHER,
    SHIPPED,
    STREAM,
    M,
    class_view,
    cluster,
    first_snapshot,
    groups_of,
    instance,
    steady_fleet,
)
from support.plans import random_plan, random_problem

PLACES = 16
CLASSES = (CHAT, STREAM, BATCH, OTHER)


def decided(*chats: int, running: int = PLACES, batch: int = 0) -> Decision:
    """Groups of so many chat requests and one of batch work wait; other classes are known."""
    groups = {cls: groups_of(cls, 0) for cls in CLASSES}
    groups |= {CHAT: groups_of(CHAT, *chats), BATCH: groups_of(BATCH, batch)}
    view = cluster(
        *(class_view(cls, NO_LENGTHS, *groups[cls]) for cls in CLASSES),
        instances=(instance(running=running),),
        queues={"gpu-0": tuple(itertools.chain(*groups.values()))},
    )
    ids = map(GroupId, map(str, itertools.count()))
    return decide(
        view,
        now_ns=NOW_NS,
        fleet=steady_fleet(PLACES),
        settings=ControllerSettings(),
        planner=plan_edf,
        new_id=lambda cls: next(ids),
    )


def signal_of(decision: Decision) -> AdmissionSignal:
    assert decision.snapshot is not None
    return admission_signal(decision.snapshot, decision.problem, decision.plan)


def served_of(decision: Decision) -> list[Served]:
    return serve(ProblemIndex.of(decision.problem), decision.plan)


def test_a_request_waits_for_all_of_its_class_and_not_for_what_is_less_urgent() -> None:
    decision = decided(40, 24, batch=30)
    signal, chat = signal_of(decision), [each for each in served_of(decision) if each.group.requests != 30]
    entry = signal.classes[CHAT]
    each_s, *same = (each.time.service.mean / each.group.requests for each in chat)
    assert same == pytest.approx([each_s] * len(same))
    end_s = max(each.start.mean + each.time.service.mean for each in chat)
    assert entry.wait.mean == pytest.approx(end_s + each_s)
    assert entry.completion.mean == pytest.approx(entry.wait.mean + chat[0].time.tail.mean)
    assert entry.wait.mean < entry.first_token.mean < entry.completion.mean
    assert signal.classes[STREAM].wait.mean < entry.wait.mean < signal.classes[BATCH].wait.mean
    assert (entry.waiting, str(entry.instance)) == (64, "gpu-0")
    assert entry.each_s == pytest.approx(each_s)
    assert signal.at_ms == NOW_NS // 1_000_000


def test_alone_on_an_idle_instance_it_waits_for_nothing() -> None:
    signal = signal_of(decided(0, running=0))
    for cls in (CHAT, STREAM, BATCH):
        entry = signal.classes[cls]
        assert entry.completion == entry.alone_completion
        assert entry.first_token == entry.alone_first_token
        assert entry.waiting == 0 and entry.departures.gone == ()
    other = signal.classes[OTHER]
    assert other.completion.mean > other.alone_completion.mean + 30.0, "the swap from storage"


@pytest.mark.parametrize("cls", [CHAT, STREAM, BATCH])
def test_an_answer_takes_the_time_of_its_batch_not_of_a_full_one(cls: RequestClass) -> None:
    """All were forecast as in a full batch, so what an idle instance answers in time was refused."""
    kind = Kind(host_memory_bytes=10, models={M: COST})
    fleet = Fleet(kinds={KIND: kind}, profiles={(M, KIND): SHIPPED})

    def forecast(running: int) -> ClassForecast:
        seen = cluster(
            class_view(cls, LENGTHS, *groups_of(cls, 0)), instances=(instance(running=running),), queues={}
        )
        now = first_snapshot(seen, fleet)
        problem = make_problem(seen, now, move_s=0.0)
        return admission_signal(now, problem, plan_edf(problem)).classes[cls]

    idle, half, full = (forecast(running) for running in (0, 40, 10_000))
    alone = steady_state(SHIPPED, Workload(prompt_tokens=1.0, output=Normal(100.0)), batch=1.0)
    assert idle.token_s == pytest.approx(alone.iteration_s, rel=0.02)
    assert idle.token_s < half.token_s < full.token_s
    for part in ("first_token", "completion"):
        means_s = [getattr(each, part).mean for each in (idle, half, full)]
        assert means_s == sorted(means_s) and means_s[0] < 0.7 * means_s[2]
    assert (idle.first_token, idle.completion) == (idle.alone_first_token, idle.alone_completion)
    assert full.alone_completion == idle.alone_completion


@pytest.mark.parametrize("cls", [CHAT, STREAM])
def test_answers_of_a_group_that_waits_take_the_time_of_its_batch(cls: RequestClass) -> None:
    """What is noted of them corrects the forecasts of arrivals, so both must be of the same batch."""
    kind = Kind(host_memory_bytes=10, models={M: COST})
    fleet = Fleet(kinds={KIND: kind}, profiles={(M, KIND): SHIPPED})

    def answer(running: int) -> Normal:
        (group,) = groups_of(cls, 1)
        seen = cluster(
            class_view(cls, LENGTHS, group),
            instances=(instance(running=running),),
            queues={"gpu-0": (group,)},
        )
        now = first_snapshot(seen, fleet)
        problem = make_problem(seen, now, move_s=0.0)
        return expected_waits(now, problem, plan_edf(problem), None)[group.id].answer

    assert answer(running=0).mean < 0.7 * answer(running=10_000).mean


def test_what_waits_leaves_as_the_plan_has_it() -> None:
    decision = decided(40, 24, batch=30)
    signal, served = signal_of(decision), served_of(decision)
    for cls, requests in ((CHAT, 64), (BATCH, 30)):
        assert signal.classes[cls].departures.gone[-1] == pytest.approx(requests)
    for each in served:
        end_s = each.start.mean + each.time.service.mean
        gone = sum(_gone(other, end_s) for other in served)
        assert signal.departures.gone_at(end_s) == pytest.approx(gone)
    whole_s = max(each.start.mean + each.time.service.mean for each in served)
    assert signal.departures.wait_s(94, 0.0) == pytest.approx(whole_s)
    assert signal.departures.wait_s(95, 0.0) is None
    late_s = 0.5 * whole_s
    assert signal.departures.wait_s(1, late_s) == pytest.approx(
        (signal.departures.wait_s(signal.departures.gone_at(late_s) + 1, 0.0) or 0.0) - late_s
    )


@pytest.mark.parametrize("in_time", [0, 5])
def test_late_requests_leave_the_class_that_they_came_in(in_time: int) -> None:
    """They count in its depth: its Retry-After was that of the few that are in time, or of none."""
    late = CHAT.missed()
    groups = {CHAT: groups_of(CHAT, in_time), OTHER: groups_of(OTHER, 200)}
    groups[late] = tuple(replace(each, id=GroupId(f"{each.id}-late")) for each in groups_of(late, 100))
    view = cluster(
        *(class_view(cls, NO_LENGTHS, *each) for cls, each in groups.items()),
        instances=(instance(running=PLACES),),
        queues={"gpu-0": tuple(itertools.chain(*groups.values()))},
    )
    decision = decide(
        view,
        now_ns=NOW_NS,
        fleet=steady_fleet(PLACES),
        settings=ControllerSettings(),
        planner=plan_edf,
        new_id=lambda cls: GroupId("new"),
    )
    last = max(
        (each for each in served_of(decision) if each.group.id.endswith("-late")),
        key=lambda each: each.start.mean,
    )
    departures = signal_of(decision).classes[CHAT].departures
    assert departures.gone[-1] == pytest.approx(in_time + 100)
    assert departures.after_s[-1] == pytest.approx(last.start.mean + last.time.service.mean)


def _gone(each: Served, after_s: float) -> float:
    service_s = each.time.service.mean
    share = (after_s - each.start.mean) / service_s if service_s else float(after_s >= each.start.mean)
    return each.group.requests * min(1.0, max(0.0, share))


@pytest.mark.parametrize("seed", range(6))
def test_the_departure_curve_of_a_large_plan_is_given_in_few_points(seed: int) -> None:
    problem = random_problem(seed, groups=60)
    served = serve(ProblemIndex.of(problem), random_plan(problem, seed))
    curve = departure_curve(served)
    requests = sum(each.group.requests for each in served)
    ends_s = [max(0.0, each.start.mean) + each.time.service.mean for each in served]
    assert len(curve.gone) <= DEPARTURE_POINTS_MAX
    assert curve.gone[-1] == pytest.approx(requests)
    assert curve.after_s[-1] == pytest.approx(max(ends_s))
    for after_s in curve.after_s[1:]:
        exact = sum(_gone(each, after_s) for each in served)
        assert curve.gone_at(after_s) == pytest.approx(exact, abs=1e-6 * requests)


@pytest.mark.parametrize("swap_hysteresis", [False, True])
def test_it_tells_of_a_model_in_use_as_of_any_other(swap_hysteresis: bool) -> None:
    """What makes an instance start no engine anew must not make its classes unknown to admission."""
    (group,) = groups_of(CHAT, 5)
    view = class_view(CHAT, NO_LENGTHS, group)
    state = NOTHING_LEARNED
    for minute in (0, 1):
        now_ns = NOW_NS + minute * 60 * 10**9
        seen = cluster(
            replace(view, finished=1000 + 60 * minute), instances=(instance(),), queues={"gpu-0": (group,)}
        )
        state = learn(state, seen, now_ns=now_ns, fleet=steady_fleet(PLACES))
    now = take_snapshot(seen, now_ns=now_ns, fleet=steady_fleet(PLACES), state=state)
    problem = make_problem(seen, now, move_s=0.0, swap_hysteresis=swap_hysteresis)
    (kind,) = problem.kinds
    assert kind.endswith(" in use") == swap_hysteresis
    entry = admission_signal(now, problem, plan_edf(problem)).classes[CHAT]
    assert (entry.waiting, str(entry.instance)) == (5, "gpu-0")
    assert entry.wait.mean > 0 and entry.completion.mean > entry.first_token.mean


def test_a_model_that_runs_nowhere_is_not_forecast() -> None:
    decision = decided(5)
    assert decision.snapshot is not None
    nowhere = replace(decision.problem, instances=(), groups=())
    signal = admission_signal(replace(decision.snapshot, instances={}), nowhere, plan_edf(nowhere))
    assert (dict(signal.classes), signal.departures.gone) == ({}, ())


def test_of_many_classes_those_with_most_waiting_are_in_the_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal_module, "CLASSES_MAX", 2)
    assert list(signal_of(decided(5, batch=30)).classes) == [BATCH, CHAT]


def test_it_is_read_back_as_it_was() -> None:
    signal = signal_of(decided(40, 24, batch=30))
    assert {type(cls) for cls in signal.classes} == {RequestClass}
    assert signal_from_plain(orjson.loads(orjson.dumps(signal_to_plain(signal)))) == signal


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "admission signal.version is 2; expected 1"),
        ({"at_ms": -1}, "admission signal.at_ms is -1; expected at least 0"),
        ({"more": 1}, "admission signal is 'more'; expected no field of this name"),
        ({"drain": {"after_s": [1.0, 0.0], "gone": [0.0, 1.0]}}, "expected numbers that do not fall"),
        ({"drain": {"after_s": [1.0], "gone": []}}, "drain.gone is 0; expected 1 numbers"),
        ({"classes": [{}]}, "admission signal.classes[0].model is None; expected a value"),
    ],
)
def test_what_is_wrong_with_one_is_named(change: dict[str, object], words: str) -> None:
    plain = signal_to_plain(signal_of(decided(5)))
    with pytest.raises(InvalidValueError) as caught:
        signal_from_plain(plain | change)
    assert words in str(caught.value)

"""The forecast for admission: against the plan it is made of, and read back from its plain form."""

import itertools
from dataclasses import replace

import orjson
import pytest

from qlm.controller import signalling
from qlm.controller.estimating.moment import moment
from qlm.controller.estimating.state import NOTHING_LEARNED, learned
from qlm.controller.planning import make_problem
from qlm.controller.protocol import ControllerSettings, Decision, decide
from qlm.controller.signalling import admission_signal, drain_of
from qlm.domain.errors import InvalidValueError
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId
from qlm.domain.length_histogram import NO_LENGTHS
from qlm.planner.admission_signal import (
    DRAIN_POINTS_MAX,
    AdmissionSignal,
    signal_from_plain,
    signal_to_plain,
)
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.verify.placing import Places
from qlm.planner.verify.timeline import Served, serve
from support.estimating import (
    BATCH,
    CHAT,
    NOW_NS,
    OTHER,
    STREAM,
    class_view,
    cluster,
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
    assert decision.moment is not None
    return admission_signal(decision.moment, decision.problem, decision.plan)


def served_of(decision: Decision) -> list[Served]:
    return serve(Places.of(decision.problem), decision.plan)


def test_a_request_waits_for_all_of_its_class_and_not_for_what_is_less_urgent() -> None:
    decision = decided(40, 24, batch=30)
    signal, chat = signal_of(decision), [each for each in served_of(decision) if each.group.requests != 30]
    told = signal.classes[CHAT]
    (each_s,) = {each.time.drain.mean / each.group.requests for each in chat}
    end_s = max(each.start.mean + each.time.drain.mean for each in chat)
    assert told.wait.mean == pytest.approx(end_s + each_s)
    assert told.completion.mean == pytest.approx(told.wait.mean + chat[0].time.tail.mean)
    assert told.wait.mean < told.first_token.mean < told.completion.mean
    assert signal.classes[STREAM].wait.mean < told.wait.mean < signal.classes[BATCH].wait.mean
    assert (told.waiting, str(told.instance)) == (64, "gpu-0")
    assert told.each_s == pytest.approx(each_s)
    assert signal.at_ms == NOW_NS // 1_000_000


def test_alone_on_an_idle_instance_it_waits_for_nothing() -> None:
    signal = signal_of(decided(0, running=0))
    for cls in (CHAT, STREAM, BATCH):
        told = signal.classes[cls]
        assert told.completion == told.alone_completion
        assert told.first_token == told.alone_first_token
        assert told.waiting == 0 and told.drain.gone == ()
    other = signal.classes[OTHER]
    assert other.completion.mean > other.alone_completion.mean + 30.0, "the swap from storage"


def test_what_waits_leaves_as_the_plan_has_it() -> None:
    decision = decided(40, 24, batch=30)
    signal, served = signal_of(decision), served_of(decision)
    for cls, requests in ((CHAT, 64), (BATCH, 30)):
        assert signal.classes[cls].drain.gone[-1] == pytest.approx(requests)
    for each in served:
        end_s = each.start.mean + each.time.drain.mean
        gone = sum(_gone(other, end_s) for other in served)
        assert signal.drain.gone_at(end_s) == pytest.approx(gone)
    whole_s = max(each.start.mean + each.time.drain.mean for each in served)
    assert signal.drain.wait_s(94, 0.0) == pytest.approx(whole_s)
    assert signal.drain.wait_s(95, 0.0) is None
    late_s = 0.5 * whole_s
    assert signal.drain.wait_s(1, late_s) == pytest.approx(
        (signal.drain.wait_s(signal.drain.gone_at(late_s) + 1, 0.0) or 0.0) - late_s
    )


def _gone(each: Served, after_s: float) -> float:
    drain_s = each.time.drain.mean
    share = (after_s - each.start.mean) / drain_s if drain_s else float(after_s >= each.start.mean)
    return each.group.requests * min(1.0, max(0.0, share))


@pytest.mark.parametrize("seed", range(6))
def test_the_drain_of_a_large_plan_is_told_in_few_points(seed: int) -> None:
    problem = random_problem(seed, groups=60)
    served = serve(Places.of(problem), random_plan(problem, seed))
    drain = drain_of(served)
    requests = sum(each.group.requests for each in served)
    ends_s = [max(0.0, each.start.mean) + each.time.drain.mean for each in served]
    assert len(drain.gone) <= DRAIN_POINTS_MAX
    assert drain.gone[-1] == pytest.approx(requests)
    assert drain.after_s[-1] == pytest.approx(max(ends_s))
    for after_s in drain.after_s[1:]:
        exact = sum(_gone(each, after_s) for each in served)
        assert drain.gone_at(after_s) == pytest.approx(exact, abs=1e-6 * requests)


@pytest.mark.parametrize("stays", [False, True])
def test_it_tells_of_a_model_in_use_as_of_any_other(stays: bool) -> None:
    """What makes an instance start no engine anew must not make its classes unknown to admission."""
    (group,) = groups_of(CHAT, 5)
    view = class_view(CHAT, NO_LENGTHS, group)
    state = NOTHING_LEARNED
    for minute in (0, 1):
        now_ns = NOW_NS + minute * 60 * 10**9
        seen = cluster(
            replace(view, finished=1000 + 60 * minute), instances=(instance(),), queues={"gpu-0": (group,)}
        )
        state = learned(state, seen, now_ns=now_ns, fleet=steady_fleet(PLACES))
    now = moment(seen, now_ns=now_ns, fleet=steady_fleet(PLACES), state=state)
    problem = make_problem(seen, now, move_s=0.0, stays=stays)
    (kind,) = problem.kinds
    assert kind.endswith(" in use") == stays
    told = admission_signal(now, problem, plan_edf(problem)).classes[CHAT]
    assert (told.waiting, str(told.instance)) == (5, "gpu-0")
    assert told.wait.mean > 0 and told.completion.mean > told.first_token.mean


def test_a_model_that_runs_nowhere_is_not_forecast() -> None:
    decision = decided(5)
    assert decision.moment is not None
    nowhere = replace(decision.problem, instances=(), groups=())
    signal = admission_signal(replace(decision.moment, instances={}), nowhere, plan_edf(nowhere))
    assert (dict(signal.classes), signal.drain.gone) == ({}, ())


def test_of_many_classes_those_with_most_waiting_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signalling, "CLASSES_MAX", 2)
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

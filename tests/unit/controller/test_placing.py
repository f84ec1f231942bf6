"""Placement in the controller: which models an instance may serve, and what agents get to know."""

from dataclasses import replace
from typing import NoReturn

import pytest

from qlm.controller.core.estimating.arrivals import Arrivals
from qlm.controller.core.estimating.service_times import ClassEntry
from qlm.controller.core.estimating.state import NOTHING_LEARNED, EstimatorState, learn
from qlm.controller.core.fleet import Fleet
from qlm.controller.core.history.classes import ClassRecord
from qlm.controller.core.history.history import History, recalled
from qlm.controller.core.placement.homes import home_changes
from qlm.controller.core.placement.placing import UNASKED_AFTER_S, restricted, update_placement
from qlm.controller.core.placement.problem import placement_problem
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.length_histogram import NO_LENGTHS
from qlm.domain.plan_change import SetHomes
from qlm.domain.view import ClassView, ClusterView
from qlm.domain.virtual_queue import VirtualQueue
from qlm.planner.placement.policy import PlacementState
from qlm.planner.problem import Kind
from support.batch_slots import CAP
from support.estimating import (
    CHAT,
    COST,
    KIND,
    NOW_NS,
    SHIPPED,
    STREAM,
    M,
    S,
    class_view,
    cluster,
    groups_of,
    instance,
    steady_fleet,
)

FLEET = steady_fleet(16)
A, B, C = ModelId("a"), ModelId("b"), ModelId("c")
COLD = EngineState.COLD


def status(name: str, awake: ModelId | None = None, *, running: int = 0) -> InstanceStatus:
    states = {model: EngineState.AWAKE if model == awake else COLD for model in (A, B, C)}
    return InstanceStatus(
        holder=Holder(InstanceId(name), SessionId("s")),
        accelerator="A10",
        models=(A, B, C),
        active_model=awake,
        engines=tuple(states.items()),
        running=running,
    )


def asked(*models: ModelId, queued: int = 1) -> tuple[ClassView, ...]:
    return tuple(ClassView(cls=RequestClass(model, "batch"), queued=queued, groups=()) for model in models)


def served(view: ClusterView) -> dict[str, set[ModelId]]:
    return {each.id: set(each.models) for each in view.instances}


def test_before_the_first_placement_models_start_anywhere_if_each_instance_can_have_one() -> None:
    instances = tuple(replace(each, models=(A, B)) for each in (status("i", A), status("j")))
    view = ClusterView(classes=asked(A, B), instances=instances, queues=())
    assert served(restricted(view, PlacementState(), FLEET, NOW_NS)) == {"i": {A, B}, "j": {A, B}}


def test_where_models_share_instances_those_asked_for_wait_for_the_first_placement() -> None:
    """The first ones asked for are not those that the placement starts; awake ones are served meanwhile."""
    view = ClusterView(classes=asked(A, B, C), instances=(status("i", A), status("j", B)), queues=())
    assert served(restricted(view, PlacementState(), FLEET, NOW_NS)) == {"i": {A}, "j": {B}}
    alone = replace(view, instances=view.instances[:1])
    assert served(restricted(alone, PlacementState(), FLEET, NOW_NS)) == {"i": {A, B, C}}


def test_before_the_first_placement_a_model_that_is_ready_nowhere_starts_on_a_spare_instance() -> None:
    """Found in drawn scenario 191: two of three twins were idle for 10 s beside requests for cold models."""
    twins = (status("i", A), status("j", A, running=1))
    view = ClusterView(classes=asked(A, B, C), instances=twins, queues=())
    assert served(restricted(view, PlacementState(), FLEET, NOW_NS)) == {"i": {A, B, C}, "j": {A}}
    starting = replace(status("j"), engines=((A, COLD), (B, COLD), (C, EngineState.STARTING)))
    once = replace(view, instances=(status("i", A), starting))
    assert served(restricted(once, PlacementState(), FLEET, NOW_NS)) == {"i": {A}, "j": {C}}
    unasked = ClusterView(classes=asked(A, C), instances=(status("i", A), status("j", B)), queues=())
    begun = PlacementState(traffic_since_s=NOW_NS / 1e9)
    assert served(restricted(unasked, begun, FLEET, NOW_NS)) == {"i": {A}, "j": {B}}
    later_ns = NOW_NS + round(UNASKED_AFTER_S * S)
    assert served(restricted(unasked, begun, FLEET, later_ns)) == {"i": {A}, "j": {B, C}}


@pytest.mark.parametrize(("start_s", "waits_s"), [(0.4, 0.4), (40.0, 10.0)])
def test_a_model_waits_for_the_first_placement_no_longer_than_its_start_takes(
    start_s: float, waits_s: float
) -> None:
    cost = replace(COST, swap_cold_s=start_s)
    fleet = Fleet(
        kinds={"A10": Kind(host_memory_bytes=10, models=dict.fromkeys((A, B, C), cost))}, profiles={}
    )
    view = ClusterView(classes=asked(A, B, C), instances=(status("i", A), status("j", B)), queues=())
    state = PlacementState(traffic_since_s=NOW_NS / 1e9)
    for at_s, models in (
        (waits_s - 0.01, {"i": {A}, "j": {B}}),
        (waits_s + 0.01, {"i": {A, C}, "j": {B, C}}),
    ):
        assert served(restricted(view, state, fleet, NOW_NS + round(at_s * S))) == models


HOMES = PlacementState(homes={InstanceId("i"): frozenset({A, B}), InstanceId("j"): frozenset({C})})


def test_a_busy_instance_serves_the_models_placed_there() -> None:
    busy = (status("i", A, running=1), status("j", C, running=1))
    view = ClusterView(classes=asked(A, B, C), instances=busy, queues=())
    assert served(restricted(view, HOMES, FLEET, NOW_NS)) == {"i": {A, B}, "j": {C}}


def test_an_idle_instance_serves_anything_unless_its_own_models_are_waited_for() -> None:
    idle = (status("i", A, running=1), status("j", C))
    view = ClusterView(classes=asked(A), instances=idle, queues=())
    assert served(restricted(view, HOMES, FLEET, NOW_NS)) == {"i": {A, B}, "j": {A, B, C}}
    waiting = replace(view, classes=asked(A, C))
    assert served(restricted(waiting, HOMES, FLEET, NOW_NS)) == {"i": {A, B}, "j": {C}}
    leased = replace(view, leased={InstanceId("j"): 1})
    assert served(restricted(leased, HOMES, FLEET, NOW_NS)) == {"i": {A, B}, "j": {C}}


def test_what_an_instance_took_up_while_idle_it_may_finish() -> None:
    """Its group was placed elsewhere as soon as its swap began, and the instance came back for nothing."""
    for taken in (
        replace(status("j"), engines=((A, EngineState.STARTING), (C, EngineState.ASLEEP))),
        status("j", A, running=1),
    ):
        view = ClusterView(classes=asked(A), instances=(status("i", B, running=1), taken), queues=())
        assert served(restricted(view, HOMES, FLEET, NOW_NS)) == {"i": {A, B}, "j": {A, C}}
    empty = status("j", A)
    view = ClusterView(classes=asked(A, C), instances=(status("i", B, running=1), empty), queues=())
    assert served(restricted(view, HOMES, FLEET, NOW_NS)) == {"i": {A, B}, "j": {C}}


def test_an_instance_has_taken_up_what_it_leased_since_its_last_heartbeat() -> None:
    """The rest of its group was moved to a busy home, until the next heartbeat showed the first requests."""
    taken = status("j", A)
    view = ClusterView(classes=asked(A), instances=(status("i", A, running=1), taken), queues=())
    leased = replace(view, leased={taken.id: 3})
    assert served(restricted(leased, HOMES, FLEET, NOW_NS)) == {"i": {A, B}, "j": {A, C}}


def test_a_busy_instance_that_is_to_start_a_copy_gets_no_more_of_its_present_model() -> None:
    """No request waits for a copy, so one on a busy instance was never started."""
    homes = {name: frozenset({model}) for name, model in (("i", A), ("j", B), ("k", B))}
    state = PlacementState(homes={InstanceId(name): models for name, models in homes.items()})
    a_twice = (status("i", A, running=1), status("j", A, running=1), status("k", B, running=1))
    view = ClusterView(classes=asked(A, B), instances=a_twice, queues=())
    assert served(restricted(view, state, FLEET, NOW_NS)) == {"i": {A, C}, "j": {B, C}, "k": {B, C}}
    # As long as B is served nowhere, its requests wait for it, and it is started for them.
    alone = replace(view, instances=(*a_twice[:2], status("k", C, running=1)))
    assert served(restricted(alone, state, FLEET, NOW_NS))["j"] == {A, B, C}
    # While A is served nowhere else, it stays.
    last = replace(view, instances=(status("i", C, running=1), *a_twice[1:]))
    assert served(restricted(last, state, FLEET, NOW_NS))["j"] == {A, B, C}


def test_a_model_whose_home_is_gone_runs_anywhere() -> None:
    view = ClusterView(classes=asked(C), instances=(status("i", A, running=1),), queues=())
    assert served(restricted(view, HOMES, FLEET, NOW_NS)) == {"i": {A, B, C}}


def test_a_model_is_placed_by_the_lengths_that_the_estimator_has_learned() -> None:
    view = cluster(
        class_view(CHAT, NO_LENGTHS, *groups_of(CHAT, 3)), instances=(instance(running=0),), queues={}
    )
    fleet = steady_fleet(16)
    state = learn(NOTHING_LEARNED, view, now_ns=NOW_NS, fleet=fleet)
    (learned_s,) = (entry.answer.mean for (cls, _), entry in state.times.entries.items() if cls == CHAT)
    (kind,) = placement_problem(view, state, fleet, NOW_NS).demands[M].kinds.values()
    assert kind.answer_s == pytest.approx(learned_s)


def test_nothing_is_placed_without_requests_and_the_problem_is_not_built_each_time() -> None:
    empty = ClusterView(classes=(), instances=(status("i", A),), queues=())
    fleet = steady_fleet(16)
    state = PlacementState()
    assert update_placement(state, empty, NOTHING_LEARNED, fleet, NOW_NS) is state
    fresh = replace(HOMES, decided_s=NOW_NS / 1e9 - 1)
    assert update_placement(fresh, empty, NOTHING_LEARNED, fleet, NOW_NS) is fresh


def test_a_model_without_a_home_gets_one_at_once() -> None:
    fleet, placement = steady_fleet(16), replace(HOMES, traffic_since_s=0.0)
    view = cluster(class_view(CHAT, NO_LENGTHS, *groups_of(CHAT, 3)), instances=(instance(),), queues={})
    state = NOTHING_LEARNED
    for at_s, accepted in ((0, 0), (11, 33)):
        view = replace(view, classes=(replace(view.classes[0], accepted=accepted),))
        state = learn(state, view, now_ns=NOW_NS + at_s * S, fleet=fleet)
    decided = replace(placement, decided_s=NOW_NS / 1e9 + 10.0)
    after = update_placement(decided, view, state, fleet, NOW_NS + 11 * S)
    assert after.homes == {InstanceId("gpu-0"): frozenset({M})}
    assert update_placement(after, view, state, fleet, NOW_NS + 11 * S) is after


def test_the_first_placement_waits_ten_seconds_unless_the_rates_are_known_from_a_history() -> None:
    """One placed by its first requests has its models where they happened to come."""
    fleet, groups = steady_fleet(16), groups_of(CHAT, 3)

    def placed(state: EstimatorState, at_s: float) -> PlacementState:
        """Return the placement after two views, the later one at that time."""
        placement = PlacementState()
        for now_s, accepted in ((0.0, 0), (1.0, 3), (at_s, 30)):
            chat = replace(class_view(CHAT, NO_LENGTHS, *groups), accepted=accepted)
            view = cluster(*([chat] if accepted else []), instances=(instance(),), queues={})
            now_ns = NOW_NS + round(now_s * S)
            state = learn(state, view, now_ns=now_ns, fleet=fleet)
            placement = update_placement(placement, view, state, fleet, now_ns)
        return placement

    assert placed(NOTHING_LEARNED, 10.5).homes is None
    assert placed(NOTHING_LEARNED, 11.5).homes == {InstanceId("gpu-0"): frozenset({M})}
    rates = Arrivals(NOW_NS, 9, asked=60.0, asked_s=120.0, past=60.0, past_s=120.0, present_ns=NOW_NS)
    record = ClassRecord(
        at_ns=NOW_NS,
        finished=9,
        mean_prompt_tokens=1.0,
        var_prompt_tokens=0.0,
        mean_max_tokens=CAP,
        var_max_tokens=0.0,
    )
    history = History(at_ns=NOW_NS, classes={CHAT: record}, arrivals={CHAT: rates})
    assert placed(recalled(history, NOW_NS), 2.0).homes == {InstanceId("gpu-0"): frozenset({M})}


def test_arrivals_since_the_last_reading_count_in_a_placement() -> None:
    fleet, state = steady_fleet(16), NOTHING_LEARNED
    for at_s, accepted in ((0, 0), (5, 10), (11, 55)):
        chat = replace(class_view(CHAT, NO_LENGTHS, *groups_of(CHAT, 3)), accepted=accepted)
        view = cluster(*([chat] if accepted else []), instances=(instance(),), queues={})
        state = learn(state, view, now_ns=NOW_NS + at_s * S, fleet=fleet)
    assert state.arrivals[CHAT].accepted_rps == pytest.approx(2.0)
    problem = placement_problem(view, state, fleet, NOW_NS + 11 * S)
    assert problem.demands[M].rate_rps == pytest.approx(5.0, rel=0.05)


def test_a_round_has_the_objective_less_the_time_of_an_answer() -> None:
    groups = groups_of(CHAT, 3)
    view = cluster(class_view(CHAT, NO_LENGTHS, *groups), instances=(instance(),), queues={})
    fleet = steady_fleet(16)
    state = learn(NOTHING_LEARNED, view, now_ns=NOW_NS, fleet=fleet)
    demand = placement_problem(view, state, fleet, NOW_NS).demands[M]
    (entry,) = (entry for (cls, _kind), entry in state.times.entries.items() if cls == CHAT)
    alone = entry.on_kind.state
    alone_s = alone.own_prefill_s + (alone.workload.output.mean - 1) * alone.alone_s
    ((slack_s, _rate),) = demand.objectives
    assert slack_s == pytest.approx(20.0 - alone_s)
    assert 1.0 < alone_s < 16.0


@pytest.mark.parametrize("slo", ["deadline-x", "ttft-x"])
@pytest.mark.parametrize(("share", "hopeless"), [(0.5, True), (1.2, False)])
def test_what_no_instance_can_answer_in_time_is_not_lost_by_an_absence(
    slo: str, share: float, hopeless: bool
) -> None:
    """Instances were kept for models whose every request is late, at the cost of others.

    Objectives are shares of the time that a prompt alone takes.
    """
    profile = replace(SHIPPED, seqs_max=256)
    fleet = replace(steady_fleet(16), profiles={(M, KIND): profile})

    def learned(cls: RequestClass) -> tuple[ClusterView, EstimatorState]:
        long = replace(class_view(cls, NO_LENGTHS, *groups_of(cls, 3)), mean_prompt_tokens=4000.0)
        view = cluster(replace(long, mean_max_tokens=1.0), instances=(instance(),), queues={})
        return view, learn(NOTHING_LEARNED, view, now_ns=NOW_NS, fleet=fleet)

    _view, state = learned(replace(CHAT, slo=slo))
    (entry,) = state.times.entries.values()
    target_ms = 1e3 * share * entry.on_kind.state.own_prefill_s
    view, state = learned(replace(CHAT, slo=slo, target_ms=target_ms))
    demand = placement_problem(view, state, fleet, NOW_NS).demands[M]
    assert (demand.objectives == ()) == hopeless
    assert (demand.waiting == 0) == hopeless


class Unscanned(dict[tuple[RequestClass, str], ClassEntry]):
    """Entries of which each is looked up: of many classes, a scan for each took seconds."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("a scan of all entries")

    items = keys = values = __iter__


def test_the_times_of_a_class_are_found_without_a_look_at_those_of_all_others() -> None:
    view = cluster(class_view(CHAT, NO_LENGTHS, *groups_of(CHAT, 3)), instances=(instance(),), queues={})
    fleet = steady_fleet(16)
    state = learn(NOTHING_LEARNED, view, now_ns=NOW_NS, fleet=fleet)
    problem = placement_problem(view, state, fleet, NOW_NS)
    unscanned = replace(state, times=replace(state.times, entries=Unscanned(state.times.entries)))
    assert placement_problem(view, unscanned, fleet, NOW_NS) == problem


@pytest.mark.parametrize(("objective", "slower"), [(10.0, False), (0.8, True), (0.1, False)])
def test_a_model_serves_as_many_as_are_in_time_together(objective: float, slower: bool) -> None:
    """A full batch has the most answers per second, but each takes longest.

    Objectives are shares of its time for an answer: longer ones need no smaller batch, and one that an answer
    alone misses has no use for it.
    """
    fleet = replace(steady_fleet(16), profiles={(M, KIND): replace(SHIPPED, seqs_max=256)})

    def learned(cls: RequestClass) -> tuple[ClusterView, EstimatorState]:
        groups = groups_of(cls, 3)
        view = cluster(class_view(cls, NO_LENGTHS, *groups), instances=(instance(),), queues={})
        return view, learn(NOTHING_LEARNED, view, now_ns=NOW_NS, fleet=fleet)

    _view, state = learned(CHAT)
    full = state.times.entries[CHAT, KIND].on_kind.state
    cls = replace(CHAT, slo="deadline-x", target_ms=1e3 * objective * full.service.mean)
    view, state = learned(cls)
    service_s = placement_problem(view, state, fleet, NOW_NS).demands[M].kinds[KIND].service_s
    assert (service_s > 1.02 * full.request_s) == slower
    assert service_s < 3 * full.request_s


def test_late_requests_count_as_lost_after_their_class_has_left_the_view() -> None:
    """Else losses of one class hide behind those of another that is gone."""
    fleet, groups, late = steady_fleet(16), groups_of(CHAT, 3), CHAT.missed()
    state, placement = NOTHING_LEARNED, replace(HOMES, traffic_since_s=0.0)
    for at_s, missed in ((0, {late: 5}), (40, {STREAM.missed(): 4})):
        chat = replace(class_view(CHAT, NO_LENGTHS, *groups), accepted=30 + at_s)
        gone = [ClassView(cls=cls, queued=1, groups=(), accepted=count) for cls, count in missed.items()]
        view = cluster(chat, *gone, instances=(instance(),), queues={})
        state = learn(state, view, now_ns=NOW_NS + at_s * S, fleet=fleet)
        placement = update_placement(placement, view, state, fleet, NOW_NS + at_s * S)
    assert placement.lost == 9.0


def test_evicted_streams_that_have_met_their_objective_are_not_lost() -> None:
    fleet, late = steady_fleet(16), CHAT.missed()
    state, placement = NOTHING_LEARNED, replace(HOMES, traffic_since_s=0.0)
    for at_s, cls in ((0, late), (40, STREAM.missed())):
        chat = replace(class_view(CHAT, NO_LENGTHS, *groups_of(CHAT, 3)), accepted=30 + at_s)
        gone = ClassView(cls=cls, queued=1, groups=(), accepted=5, kept=4)
        view = cluster(chat, gone, instances=(instance(),), queues={})
        state = learn(state, view, now_ns=NOW_NS + at_s * S, fleet=fleet)
        placement = update_placement(placement, view, state, fleet, NOW_NS + at_s * S)
    assert placement.lost == 2.0


def test_agents_get_changed_homes_only_with_the_model_of_most_arrivals_first() -> None:
    instances = (status("i", A), status("j", C), status("k", C))
    empty = VirtualQueue(instance=InstanceId("k"))
    view = ClusterView(classes=asked(A, B, C), instances=instances, queues=(empty,))
    assert list(home_changes(view, None, NOTHING_LEARNED, NOW_NS)) == []
    (first, second) = home_changes(view, HOMES.homes, NOTHING_LEARNED, NOW_NS)
    assert (first.instance, second) == ("i", SetHomes(instance=InstanceId("j"), models=(C,)))
    assert set(first.models) == {A, B}
    queues = tuple(VirtualQueue(instance=each.instance, homes=each.models) for each in (first, second))
    assert list(home_changes(replace(view, queues=queues), HOMES.homes, NOTHING_LEARNED, NOW_NS)) == []
    fleet, state = steady_fleet(16), NOTHING_LEARNED
    for at_s, (often, seldom) in enumerate(((0, 0), (40, 10))):
        counted = (replace(asked(B)[0], accepted=often), replace(asked(A)[0], accepted=seldom))
        view = replace(view, classes=counted)
        state = learn(state, view, now_ns=NOW_NS + at_s * S, fleet=fleet)
    (sent, _other) = home_changes(view, HOMES.homes, state, NOW_NS + S)
    assert sent.models == (B, A)

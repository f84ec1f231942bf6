"""The controller's decision on a cluster view, with the real planner and shipped profiles."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from qlm.controller.core.decide import (
    ControllerSettings,
    Decision,
    classes_without_instance,
    decide,
    exceeds_groups,
    unknown_accelerators,
)
from qlm.controller.core.estimating.state import NOTHING_LEARNED, EstimatorState
from qlm.controller.core.fleet import Fleet
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import EngineCapacity, EngineState, InstanceStatus, OpenAnswers, ServedWork, StagedWork
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.outcome import Outcome
from qlm.domain.plan_change import CreateGroup, SetForecasts, SetQueue
from qlm.domain.view import ClassView, ClusterView
from qlm.domain.virtual_queue import VirtualQueue
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.problem import Kind, ModelCost
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.store.core.length_stats import LengthStats

MISTRAL, VICUNA = ModelId("mistral-7b"), ModelId("vicuna-13b")
S = 1_000_000_000
CAPACITY = EngineCapacity(kv_tokens=40_000, block_tokens=16, seqs_max=64, context_tokens=4096)


def fleet() -> Fleet:
    profiles = {
        (model, kind): find_profile(builtin_profiles(), model, kind)
        for model, kind in [(MISTRAL, "A10"), (MISTRAL, "A100"), (VICUNA, "A100")]
    }
    cost = ModelCost(weights_bytes=1, swap_warm_s=1.0, swap_cold_s=30.0)
    kinds = {
        "A10": Kind(host_memory_bytes=1, models={MISTRAL: cost}),
        "A100": Kind(host_memory_bytes=1, models={MISTRAL: cost, VICUNA: cost}),
    }
    return Fleet(kinds=kinds, profiles=profiles)


def instance(
    name: str, kind: str, active: ModelId, *models: ModelId, draining: bool = False
) -> InstanceStatus:
    return InstanceStatus(
        holder=Holder(InstanceId(name), SessionId("s")),
        accelerator=kind,
        models=(active, *models),
        active_model=active,
        engines=((active, EngineState.AWAKE),),
        capacity=CAPACITY,
        draining=draining,
    )


def waiting(model: ModelId, queued: int, *, target_ms: float | None = 20_000.0) -> ClassView:
    slo = "batch" if target_ms is None else "deadline-16s"
    return ClassView(
        cls=RequestClass(model, slo, target_ms=target_ms),
        queued=queued,
        groups=(),
        ungrouped_arrival_ns=S,
        mean_prompt_tokens=200.0,
        mean_max_tokens=200.0,
    )


def run(
    view: ClusterView,
    settings: ControllerSettings | None = None,
    estimator: EstimatorState = NOTHING_LEARNED,
) -> Decision:
    numbers = itertools.count(1)
    new_id: Callable[[RequestClass], GroupId] = lambda cls: GroupId(f"{cls.model}-{next(numbers)}")  # noqa: E731
    return decide(
        view,
        now_ns=2 * S,
        fleet=fleet(),
        settings=settings or ControllerSettings(),
        planner=plan_edf,
        new_id=new_id,
        estimator=estimator,
    )


def queues(decision: Decision) -> dict[str, tuple[GroupId, ...]]:
    return {c.instance: c.groups for c in decision.changes if isinstance(c, SetQueue)}


def test_waiting_requests_are_grouped_and_placed_in_one_decision() -> None:
    view = ClusterView(
        classes=(waiting(MISTRAL, 3),),
        instances=(instance("a10-0", "A10", MISTRAL), instance("a100-0", "A100", VICUNA, MISTRAL)),
        queues=(),
    )
    decision = run(view)
    assert [c.count for c in decision.changes if isinstance(c, CreateGroup)] == [3]
    assert queues(decision) == {"a10-0": ("mistral-7b-1",)}, "the A10 has the model awake: no swap"


def test_a_model_goes_only_where_it_runs() -> None:
    view = ClusterView(
        classes=(waiting(VICUNA, 5),),
        instances=(instance("a10-0", "A10", MISTRAL), instance("a100-0", "A100", MISTRAL, VICUNA)),
        queues=(),
    )
    assert queues(run(view)) == {"a100-0": ("vicuna-13b-1",)}


@pytest.mark.parametrize("queued", [0, 1, 2_000, 20_000])
def test_the_groups_that_a_plan_has_to_form_are_counted_before_it(queued: int) -> None:
    """A long queue without groups makes a large plan, in a controller's first turn for instance."""
    view = ClusterView(
        classes=(waiting(MISTRAL, queued), waiting(VICUNA, 5)),
        instances=(instance("a100", "A100", MISTRAL, VICUNA),),
        queues=(),
    )
    decision, settings = run(view), ControllerSettings()
    groups, times = len(decision.problem.groups), decision.estimator.times
    assert exceeds_groups(view, settings, times, groups - 1)
    assert not exceeds_groups(view, settings, times, groups)
    assert exceeds_groups(view, settings, NOTHING_LEARNED.times, 10) is (queued >= 2_000), "by a usual batch"


def test_groups_are_no_larger_than_delta_batches() -> None:
    view = ClusterView(
        classes=(waiting(MISTRAL, 1000),), instances=(instance("a10-0", "A10", MISTRAL),), queues=()
    )
    decision = run(view, ControllerSettings(delta=2.0))
    counts = [c.count for c in decision.changes if isinstance(c, CreateGroup)]
    assert sum(counts) == 1000
    assert max(counts) == 128, "twice the 64 places of the instance"


def test_the_groups_of_a_lost_instance_go_elsewhere_and_its_queue_is_emptied() -> None:
    cls = waiting(MISTRAL, 4)
    group = Group(id=GroupId("g"), cls=cls.cls, seq=1, count=4, head_arrival_ns=S, created_ns=S)
    view = ClusterView(
        classes=(
            ClassView(cls=cls.cls, queued=4, groups=(group,), mean_prompt_tokens=100.0, mean_max_tokens=50.0),
        ),
        instances=(instance("a10-1", "A10", MISTRAL),),
        queues=(VirtualQueue(instance=InstanceId("a10-0"), groups=(group,)),),
    )
    assert queues(run(view)) == {"a10-0": (), "a10-1": ("g",)}


def test_a_draining_instance_gets_nothing() -> None:
    view = ClusterView(
        classes=(waiting(MISTRAL, 4),),
        instances=(instance("a10-0", "A10", MISTRAL, draining=True), instance("a10-1", "A10", MISTRAL)),
        queues=(),
    )
    assert set(queues(run(view))) == {"a10-1"}


def test_an_instance_gets_only_models_it_serves_though_its_kind_runs_others() -> None:
    view = ClusterView(
        classes=(waiting(VICUNA, 5),),
        instances=(instance("a100-a", "A100", MISTRAL), instance("a100-b", "A100", MISTRAL, VICUNA)),
        queues=(),
    )
    assert queues(run(view)) == {"a100-b": ("vicuna-13b-1",)}


def test_an_instance_whose_engine_failed_gets_nothing_of_that_model() -> None:
    broken = replace(
        instance("a10-0", "A10", MISTRAL), active_model=None, engines=((MISTRAL, EngineState.FAILED),)
    )
    view = ClusterView(
        classes=(waiting(MISTRAL, 500),),
        instances=(broken, instance("a10-1", "A10", MISTRAL)),
        queues=(),
    )
    assert set(queues(run(view))) == {"a10-1"}


def test_an_instance_of_an_unknown_accelerator_is_left_out_and_named() -> None:
    view = ClusterView(
        classes=(waiting(MISTRAL, 5),),
        instances=(instance("h100-0", "H100", MISTRAL), instance("a10-0", "A10", MISTRAL)),
        queues=(),
    )
    assert set(queues(run(view))) == {"a10-0"}
    assert unknown_accelerators(view, fleet()) == {"H100"}


def test_nothing_to_change_changes_nothing() -> None:
    cls = waiting(MISTRAL, 4)
    group = Group(id=GroupId("g"), cls=cls.cls, seq=1, count=4, head_arrival_ns=S, created_ns=S)
    view = ClusterView(
        classes=(
            ClassView(cls=cls.cls, queued=4, groups=(group,), mean_prompt_tokens=9.0, mean_max_tokens=50.0),
        ),
        instances=(instance("a10-0", "A10", MISTRAL),),
        queues=(VirtualQueue(instance=InstanceId("a10-0"), groups=(group,)),),
    )
    (sent,) = run(view).changes
    assert isinstance(sent, SetForecasts)
    queue = replace(view.queues[0], forecasts=sent.forecasts)
    assert run(replace(view, queues=(queue,))).changes == ()


@pytest.mark.parametrize("target_ms", [None, 20_000.0])
def test_without_any_instance_requests_wait_in_groups(target_ms: float | None) -> None:
    view = ClusterView(classes=(waiting(MISTRAL, 4, target_ms=target_ms),), instances=(), queues=())
    decision = run(view)
    assert queues(decision) == {}
    assert decision.plan.unplaceable == ("mistral-7b-1",)
    assert [cls.model for cls in classes_without_instance(view)] == [MISTRAL]


def test_what_was_learned_is_handed_on_and_kept_while_nothing_is_new() -> None:
    three = replace(waiting(MISTRAL, 3), accepted=3)
    view = ClusterView(classes=(three,), instances=(instance("a10-0", "A10", MISTRAL),), queues=())
    first = run(view)
    assert set(first.estimator.classes) == {waiting(MISTRAL, 3).cls}
    assert run(view, estimator=first.estimator).estimator is first.estimator


def test_groups_of_long_answers_are_smaller_where_the_kv_cache_bounds_the_batch() -> None:
    def count(tokens: int) -> int:
        stats = LengthStats()
        for _ in range(200):
            stats.count(tokens, Outcome.STOP, 1000)
        cls = replace(waiting(MISTRAL, 1000), mean_max_tokens=4000.0, lengths=stats.value)
        decision = run(ClusterView(classes=(cls,), instances=(instance("a10-0", "A10", MISTRAL),), queues=()))
        return max(change.count for change in decision.changes if isinstance(change, CreateGroup))

    assert count(50) == 256, "four batches of the 64 places"
    long = count(3000)
    # Each holds its prompt, half its answer on average, and half a block.
    assert long == pytest.approx(4 * 40_000 / (200 + 1500 + 8), rel=0.1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("delta", 0.0), ("quiet_s", 0.0), ("min_interval_s", -1.0), ("group_requests_max", 0), ("move_s", -1.0)],
)
def test_settings_that_make_no_sense_are_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidValueError, match=f"controller.{field} is {value}"):
        ControllerSettings(**{field: value})  # type: ignore[arg-type]


def test_a_model_that_only_a_newer_configuration_has_waits_and_does_not_stop_planning() -> None:
    """While a fleet is updated: its gateways and agents may be newer than the controller that leads."""
    newer = ModelId("newer")
    cls = RequestClass(newer, "deadline-16s", target_ms=20_000.0)
    busy = replace(
        instance("a100-0", "A100", newer, MISTRAL),
        running=3,
        parked=2,
        staged=(StagedWork(cls=cls, fresh=1, evicted=1, evicted_tokens=70),),
        answers=(OpenAnswers(cls=cls, counts=((3, 2, 8),)),),
        work=ServedWork(busy_s=9.0, request_s=20.0, prompt_tokens=800, output_tokens=900, ended=4),
    )
    view = ClusterView(
        classes=(waiting(newer, 5), waiting(MISTRAL, 3)),
        instances=(busy, instance("a10-0", "A10", MISTRAL, newer)),
        queues=(),
        leased={busy.id: 5},
    )
    decision = run(view)
    assert queues(decision) == {"a10-0": ("mistral-7b-2",)}

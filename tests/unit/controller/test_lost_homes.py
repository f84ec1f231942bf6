"""Placement in the controller when instances drain, leave, return or fail: what waits runs somewhere."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from qlm.controller.core.estimating.state import NOTHING_LEARNED, EstimatorState, learn
from qlm.controller.core.fleet import Fleet
from qlm.controller.core.placement.placing import restricted, update_placement
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.domain.length_histogram import NO_LENGTHS
from qlm.domain.view import ClassView, ClusterView
from qlm.planner.placement.policy import FIRST_AFTER_S, PlacementState
from qlm.planner.problem import Kind
from support.estimating import COST, KIND, NOW_NS, S, class_view, instance, steady_profile

MODELS = A, B, C = ModelId("a"), ModelId("b"), ModelId("c")
COLD, FAILED = EngineState.COLD, EngineState.FAILED
PROFILE = steady_profile(16)
FLEET = Fleet(
    kinds={KIND: Kind(host_memory_bytes=10, models=dict.fromkeys(MODELS, COST))},
    profiles={(model, KIND): PROFILE for model in MODELS},
)


def status(
    name: str,
    awake: ModelId | None,
    models: Sequence[ModelId] = MODELS,
    *,
    failed: Sequence[ModelId] = (),
    running: int = 1,
    draining: bool = False,
) -> InstanceStatus:
    states = dict.fromkeys(models, COLD) | dict.fromkeys(failed, FAILED)
    if awake is not None:
        states[awake] = EngineState.AWAKE
    made = replace(instance(name, running=running), models=tuple(models), active_model=awake)
    return replace(made, engines=tuple(states.items()), draining=draining)


def waiting(model: ModelId, accepted: int = 0, *, late: bool = False) -> ClassView:
    cls = RequestClass(model, "deadline-16s", target_ms=20_000.0)
    return replace(class_view(cls.missed() if late else cls, NO_LENGTHS, ungrouped=1), accepted=accepted)


@dataclass
class Cluster:
    """A controller's placement over time."""

    placement: PlacementState = field(default_factory=PlacementState)
    known: EstimatorState = NOTHING_LEARNED
    now_ns: int = NOW_NS

    @property
    def homes(self) -> dict[str, set[str]]:
        """The models of each instance; empty before the first placement."""
        return {id: set(models) for id, models in (self.placement.homes or {}).items()}

    def see(
        self, at_s: float, classes: Sequence[ClassView], *instances: InstanceStatus
    ) -> dict[str, set[str]]:
        """Return the models that each instance may serve after a view."""
        self.now_ns = NOW_NS + round(at_s * S)
        view = ClusterView(classes=tuple(classes), instances=instances, queues=())
        self.known = learn(self.known, view, now_ns=self.now_ns, fleet=FLEET)
        self.placement = update_placement(self.placement, view, self.known, FLEET, self.now_ns)
        return {
            each.id: set(each.models)
            for each in restricted(view, self.placement, FLEET, self.now_ns).instances
        }


def placed() -> Cluster:
    """Return a cluster with one home for each of two models, decided 11 s after `NOW_NS`."""
    of = Cluster()
    for at_s in (0.0, 1.0, 11.0):
        asked = [waiting(A, 5 + round(10 * at_s)), waiting(B, 5 + round(10 * at_s))]
        of.see(at_s, asked if at_s else (), status("i", A, (A, B)), status("j", B, (A, B)))
    assert of.homes == {"i": {A}, "j": {B}}
    return of


ASKED = (waiting(A, 125), waiting(B, 125))


def test_a_model_whose_home_drains_gets_another_at_once() -> None:
    of = placed()
    served = of.see(12.0, ASKED, status("i", A, (A, B), draining=True), status("j", B, (A, B)))
    assert served["j"] == {A, B}
    assert of.homes == {"j": {A, B}}


def test_a_model_whose_engine_has_failed_at_its_home_gets_another_at_once_and_both_serve_it_later() -> None:
    of = placed()
    served = of.see(12.0, ASKED, status("i", None, (A, B), failed=[A], running=0), status("j", B, (A, B)))
    assert served["j"] == {A, B}
    served = of.see(60.0, ASKED, status("i", A, (A, B)), status("j", B, (A, B)))
    assert served == {"i": {A}, "j": {A, B}}


def test_an_instance_that_returns_with_fewer_models_is_no_home_of_the_others() -> None:
    of = placed()
    assert of.see(12.0, ASKED, status("i", B, (B,)), status("j", B, (A, B)))["j"] == {A, B}


def test_the_only_instance_keeps_its_homes_while_it_drains_or_all_engines_fail() -> None:
    of = Cluster()
    for at_s in (0.0, 1.0, 11.0):
        of.see(at_s, [waiting(A, 5 + round(10 * at_s))] if at_s else (), status("i", A))
    assert of.homes == {"i": {A}}
    for at_s, there in ((12.0, status("i", A, draining=True)), (60.0, status("i", None, failed=MODELS))):
        of.see(at_s, (waiting(A, 200),), there)
        assert of.homes == {"i": {A}}
    assert A in of.see(61.0, (waiting(A, 200),), status("i", A))["i"]


@pytest.mark.parametrize("late", [False, True])
def test_what_waits_since_before_this_controller_is_served_though_nothing_comes(late: bool) -> None:
    """Without new requests there are no rates, so no first placement that it could wait for."""
    of, instances = Cluster(), (status("i", A), status("j", B))
    for at_s in (0.0, FIRST_AFTER_S - 1):
        assert of.see(at_s, (waiting(C, 5, late=late),), *instances) == {"i": {A}, "j": {B}}
    assert of.see(FIRST_AFTER_S, (waiting(C, 5, late=late),), *instances) == {"i": {A, C}, "j": {B, C}}


def some(draw: random.Random, name: str) -> InstanceStatus:
    """Return an instance with any of the models, in any state."""
    models = draw.sample(MODELS, draw.randint(1, 3))
    failed = [model for model in models if draw.random() < 0.2]
    awake = draw.choice([None, *(model for model in models if model not in failed)])
    return status(
        name, awake, models, failed=failed, running=draw.randint(0, 2), draining=draw.random() < 0.2
    )


@pytest.mark.parametrize("seed", range(10))
def test_what_waits_may_run_wherever_instances_come_from(seed: int) -> None:
    draw, of, at_s, accepted = random.Random(seed), Cluster(), 0.0, 0
    alive: dict[str, InstanceStatus] = {}
    for _turn in range(60):
        at_s, accepted = at_s + draw.choice([1, 3, 10, 40]), accepted + draw.randint(0, 5)
        name = draw.choice("ijk"[: 1 + seed % 3])
        alive[name] = some(draw, name)
        if draw.random() < 0.2:
            del alive[name]
        asked = [waiting(model, accepted) for model in MODELS if draw.random() < 0.7]
        served = of.see(at_s, asked, *alive.values())
        if not of.homes:
            continue
        for model in (each.cls.model for each in asked):
            able = [
                each.id
                for each in alive.values()
                if not each.draining and dict(each.engines).get(model, FAILED) is not FAILED
            ]
            assert not able or any(model in served[id] for id in able)

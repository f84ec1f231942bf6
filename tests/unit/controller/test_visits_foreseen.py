"""The queue of an instance as its agent serves it in visits."""

import pytest

from qlm.agents.core.scheduling.visits.backlog import Patience
from qlm.agents.core.scheduling.visits.decision import LEAST_VISIT_SWAPS
from qlm.controller.core.expected.visits import VisitWalk, WaitingPart
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.problem import Instance, Kind, ModelCost

M, N = ModelId("m"), ModelId("n")
SWAP_S = 6.0
GIB = 2**30


def kind(host_memory_gib: int = 200) -> Kind:
    cost = ModelCost(
        weights_bytes=16 * GIB, swap_warm_s=SWAP_S, swap_reload_s=30.0, swap_cold_s=60.0, process_bytes=GIB
    )
    return Kind(host_memory_bytes=host_memory_gib * GIB, models={M: cost, N: cost})


def part(
    id: str,
    model: ModelId,
    requests: int,
    *,
    objective_s: float | None,
    came_s: float = 0.0,
    priority: int = 0,
) -> WaitingPart:
    slo = "batch" if objective_s is None else f"deadline-{objective_s:g}s"
    target_ms = None if objective_s is None else objective_s * 1e3
    return WaitingPart(
        id=GroupId(id),
        cls=RequestClass(model, slo, priority=priority, target_ms=target_ms),
        left=requests,
        service_s=0.5,
        lead_s=2.0,
        first_s=-came_s,
        last_s=-came_s,
    )


def walked(*parts: WaitingPart, host_memory_gib: int = 200, decisions_max: int = 300) -> VisitWalk:
    instance = Instance(id=InstanceId("gpu-0"), kind="k", loaded_model=M, warm_models=(N,))
    walk = VisitWalk(kind(host_memory_gib), instance, parts, Patience(120.0, 0.2), {})
    walk.run(decisions_max)
    return walk


def test_one_model_is_served_in_order() -> None:
    walk = walked(part("a", M, 10, objective_s=60), part("b", M, 4, objective_s=None))
    assert walk.leaves_s == {"a": pytest.approx(5.0), "b": pytest.approx(7.0)}


def test_a_plan_that_alternates_is_served_model_after_model() -> None:
    """The plan would swap three times; an agent serves what is awake first while the others can wait."""
    walk = walked(
        part("a", M, 20, objective_s=600),
        part("b", N, 20, objective_s=600),
        part("c", M, 20, objective_s=600),
    )
    assert walk.leaves_s[GroupId("c")] == pytest.approx(20.0), "before the swap"
    assert walk.leaves_s[GroupId("b")] >= 20.0 + SWAP_S + 10.0


def test_the_head_of_the_queue_waits_for_the_latest_moment() -> None:
    """Its model is not awake, and it can wait: the plan has it at once after a swap."""
    walk = walked(part("b", N, 4, objective_s=90), part("a", M, 400, objective_s=900))
    assert 40.0 < walk.leaves_s[GroupId("b")] <= 90.0


def test_a_visit_has_a_least_length() -> None:
    walk = walked(part("b", N, 2, objective_s=5, came_s=0.0), part("a", M, 400, objective_s=900))
    assert walk.leaves_s[GroupId("b")] > LEAST_VISIT_SWAPS * SWAP_S


@pytest.mark.parametrize(("host_memory_gib", "back_s"), [(200, SWAP_S), (17, 60.0)])
def test_what_fits_host_memory_no_more_is_loaded_from_storage(host_memory_gib: int, back_s: float) -> None:
    urgent = part("b", N, 4, objective_s=30, priority=-1)
    walk = walked(urgent, part("a", M, 20, objective_s=200), host_memory_gib=host_memory_gib)
    left_s = walk.leaves_s[GroupId("a")] - walk.leaves_s[GroupId("b")] - 10.0
    assert back_s <= left_s <= 2 * back_s + SWAP_S


def test_the_rest_of_a_request_is_waited_for_as_a_whole_one() -> None:
    """Less than half of one counted as none: nothing went back for it, and it took all decisions left."""
    urgent_s = 40.35  # 55.7 of 56 requests have left when it is the latest moment
    walk = walked(part("a", M, 56, objective_s=None), part("b", N, 60, objective_s=urgent_s))
    assert walk.leaves_s[GroupId("b")] < walk.leaves_s[GroupId("a")] < urgent_s + 60 * 0.5 + 5 * SWAP_S


def test_it_stops_after_the_decisions_it_may_take() -> None:
    walk = walked(part("a", M, 400, objective_s=60), part("b", N, 400, objective_s=60), decisions_max=2)
    assert len(walk.leaves_s) < 2
    assert walk.now_s > 0

"""Idle time beside work that waits anywhere, from the controller's views."""

import pytest

from qlm.agents.core.stats.gpu_time import GpuUse
from qlm.controller.core.idle_instances import IdleInstances, activity, waiting_models
from qlm.domain.fleet import EngineState, InstanceStatus, StagedWork
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.view import ClassView, ClusterView
from support.requests import a_request

A, B = ModelId("a"), ModelId("b")
S = 1_000_000_000


def status(
    name: str = "i", *, awake: ModelId | None = A, running: int = 0, b: EngineState = EngineState.COLD,
    staged: tuple[StagedWork, ...] = (),
) -> InstanceStatus:  # fmt: skip
    engines = ((A, EngineState.AWAKE if awake else EngineState.COLD), (B, b))
    holder = Holder(InstanceId(name), SessionId("s"))
    return InstanceStatus(
        holder=holder, accelerator="A10", models=(A, B), active_model=awake, engines=engines, running=running,
        staged=staged,
    )  # fmt: skip


def class_of(model: ModelId) -> RequestClass:
    return a_request(model=model).cls


def view(*statuses: InstanceStatus, queued: tuple[ModelId, ...] = ()) -> ClusterView:
    classes = tuple(ClassView(cls=class_of(model), queued=1, groups=()) for model in queued)
    return ClusterView(classes=classes, instances=statuses, queues=())


@pytest.mark.parametrize(
    ("present", "waiting", "use"),
    [
        (status(), (), GpuUse.IDLE),
        (status(), (A, B), GpuUse.IDLE_AWAKE),
        (status(), (B,), GpuUse.IDLE_LOADABLE),
        (status(), (ModelId("other"),), GpuUse.IDLE),
        (status(b=EngineState.FAILED), (B,), GpuUse.IDLE),
        (status(running=1), (A,), GpuUse.USEFUL),
        (status(awake=None), (A,), GpuUse.DOWN),
        (status(awake=None, b=EngineState.STARTING), (A,), GpuUse.SWAP),
    ],
)  # fmt: skip
def test_an_instance_is_idle_beside_what_waits_anywhere(
    present: InstanceStatus, waiting: tuple[ModelId, ...], use: GpuUse
) -> None:
    assert activity(present, frozenset(waiting)).use is use


def test_work_that_another_agent_has_parked_waits_too() -> None:
    parked = status("j", staged=(StagedWork(cls=class_of(A), evicted=1),), running=1)
    assert waiting_models(view(status(), parked, queued=(B,))) == {A, B}


def test_time_is_counted_from_view_to_view() -> None:
    idle = IdleInstances(lambda instance, interval: None)
    idle.observe(view(status(), queued=(A,)), 100 * S)
    idle.observe(view(status()), 101 * S)
    idle.observe(view(status(running=3)), 103 * S)
    idle.observe(view(), 104 * S)
    idle.observe(view(status()), 106 * S)
    ns = idle.times[InstanceId("i")].ns
    assert {use: ns[use] / S for use in GpuUse if ns[use]} == {
        GpuUse.IDLE_AWAKE: 1.0, GpuUse.IDLE: 2.0, GpuUse.USEFUL: 1.0, GpuUse.DOWN: 2.0
    }  # fmt: skip


def test_what_nobody_saw_is_not_counted() -> None:
    idle = IdleInstances(lambda instance, interval: None)
    idle.observe(view(status()), 100 * S)
    idle.observe(view(status()), 1000 * S)
    idle.observe(view(status()), 1001 * S)
    assert idle.times[InstanceId("i")].total_ns == S

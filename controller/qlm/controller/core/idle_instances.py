"""Idle time of instances beside work that waits anywhere, as the controller sees it.

An agent knows its own virtual queue only. The controller knows all classes, and each instance as of its last
heartbeat. Intervals shorter than the time between heartbeats are missed or taken for longer.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from qlm.agents.core.stats.gpu_time import Activity, GpuTime, GpuUse, Interval
from qlm.controller.core.idle_reasons import explain, plan_cost
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.view import ClusterView
from qlm.planner.problem import Plan, Problem

GAP_MAX_NS: Final = 5_000_000_000
"""Longest time between two views that is counted: a controller that stood by has seen nothing."""


class IdleInstances:
    """Time of each instance, from view to view.

    Args:
        on_interval: Receives each interval when it is over.

    Attributes:
        times: Account by instance.
    """

    def __init__(self, on_interval: Callable[[InstanceId, Interval], None]) -> None:
        self._on_interval = on_interval
        self.times: dict[InstanceId, GpuTime] = {}
        self._seen_ns = 0

    def observe(self, view: ClusterView, now_ns: int) -> None:
        """Note what each instance does as of this view."""
        waiting = waiting_models(view)
        present = {status.id: activity(status, waiting) for status in view.instances}
        lost = now_ns - self._seen_ns > GAP_MAX_NS
        for id in self.times.keys() | present.keys():
            time = self._time(id)
            if lost:
                time.pause()
            time.observe(present.get(id, _GONE), now_ns)
        self._seen_ns = now_ns

    def explain(self, problem: Problem, plan: Plan) -> None:
        """Note the costs that the plan compared at an idle instance; at one, since that prices two plans."""
        cost_s = plan_cost(problem, plan)
        any(explain(time, problem, plan, instance, cost_s) for instance, time in self.times.items())

    def _time(self, id: InstanceId) -> GpuTime:
        if id not in self.times:
            self.times[id] = GpuTime(partial(self._on_interval, id))
        return self.times[id]


_GONE: Final = Activity(use=GpuUse.DOWN)


def waiting_models(view: ClusterView) -> frozenset[ModelId]:
    """Return the models with requests that wait in a class or with an agent."""
    queued = {each.cls.model for each in view.classes if each.queued}
    staged = {each.cls.model for status in view.instances for each in status.staged}
    return frozenset(queued | staged)


def activity(status: InstanceStatus, waiting: Collection[ModelId]) -> Activity:
    """Return what an instance does by its status."""
    states = dict(status.engines)
    if status.active_model is None:
        starting = EngineState.STARTING in states.values()
        return Activity(use=GpuUse.SWAP if starting else GpuUse.DOWN)
    model = status.active_model
    if states.get(model) is EngineState.FAILED:
        return Activity(use=GpuUse.DOWN, model=model)
    if status.running:
        return Activity(use=GpuUse.USEFUL, model=model)
    able = tuple(
        each for each in status.models if each in waiting and states.get(each) is not EngineState.FAILED
    )
    return Activity.idle(model, able)

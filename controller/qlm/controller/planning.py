"""The planning problem of a moment: what the estimator knows, as the plain data that planning methods see."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from qlm.controller.due import due, due_in_time
from qlm.controller.estimating.moment import InstanceMoment, Moment
from qlm.controller.estimating.planning_times import PlanningForm, busy_time, planning_form, waited_shares
from qlm.controller.estimating.queues import last_arrivals_ns
from qlm.domain.fleet import EngineState
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.view import ClusterView
from qlm.planner.problem import GroupTime, Instance, Kind, PlannedGroup, Problem

NO_HOMES: Final[Mapping[GroupId, InstanceId]] = MappingProxyType({})
"""All groups are where they are."""


STAYS: Final = 3
"""A cold start on an instance in use counts so many times: its agent waits twice as long before it."""

IN_USE_S: Final = 60.0
"""A model for which a request with a deadline comes at least so often is in use."""


@dataclass(frozen=True, slots=True)
class _Variant:
    """A kind of accelerator with the models that an instance of it can serve at present.

    Attributes:
        accelerator: Its name.
        models: Sorted.
        in_use: Requests with deadlines come for the model that is awake.
    """

    accelerator: str
    models: tuple[ModelId, ...]
    in_use: bool = False

    @property
    def name(self) -> str:
        """Key of the kind in the problem: instances that differ in their models are of different kinds."""
        return f"{self.accelerator}[{','.join(self.models)}]{' in use' if self.in_use else ''}"


def accelerator_of(kind: str) -> str:
    """The accelerator of a kind in a problem that `make_problem` wrote."""
    return kind.partition("[")[0]


def make_problem(
    view: ClusterView,
    moment: Moment,
    *,
    move_s: float,
    homes: Mapping[GroupId, InstanceId] = NO_HOMES,
    demotes: bool = False,
    stays: bool = False,
) -> Problem:
    """Write the planning problem for groups with waiting requests, in seconds since the epoch.

    Args:
        view: The cluster.
        moment: The same with its estimates, and the groups as they will be.
        move_s: What moving a group must gain to be worth it, seconds.
        homes: Where groups belong that are on no queue yet, or on another: they count as if they were there.
        demotes: Agents put aside what cannot be in time any more.
        stays: Agents whose model is in use start no other engine anew for what can wait.
    """
    queues = {queue.instance: [g.id for g in queue.groups if g.id not in homes] for queue in view.queues}
    for group, home in homes.items():
        queues.setdefault(home, []).append(group)
    variants = {id: _variant(each, moment, stays=stays) for id, each in moment.instances.items()}
    kinds = {variant.name: variant for variant in variants.values()}
    return Problem(
        now_s=moment.now_ns / 1e9,
        move_s=move_s,
        kinds={name: _kind(moment.fleet.kinds[each.accelerator], each) for name, each in kinds.items()},
        instances=tuple(
            _instance(each, variants[id].name, tuple(queues.get(id, ())))
            for id, each in moment.instances.items()
        ),
        groups=tuple(_planned(moment, kinds, demotes=demotes)),
    )


def class_forms(
    moment: Moment, problem: Problem, classes: Iterable[RequestClass]
) -> dict[RequestClass, dict[str, PlanningForm]]:
    """Give the times of classes by kind of the problem; none where a class cannot run."""
    # The problem has the names; what else tells its kinds apart changes no request's time.
    kinds = {
        each.kind: _variant(moment.instances[each.id], moment, stays=False) for each in problem.instances
    }
    waited = waited_shares(moment)
    return {cls: _forms(moment, cls, kinds, waited.get(cls.model, 1.0)) for cls in classes}


def _variant(instance: InstanceMoment, moment: Moment, *, stays: bool) -> _Variant:
    """Leave out models whose engine has failed: the agent tries again, others serve meanwhile.

    An instance whose model is in use with deadlines starts no engine anew for what can wait (`agents.head`).
    """
    status = instance.status
    in_use = stays and any(
        cls.model == instance.loaded and cls.due_ms is not None and each.rate_rps > 1 / IN_USE_S
        for cls, each in moment.state.arrivals.items()
    )
    failed = {model for model, state in status.engines if state is EngineState.FAILED}
    return _Variant(status.accelerator, tuple(sorted(m for m in status.models if m not in failed)), in_use)


def _kind(kind: Kind, variant: _Variant) -> Kind:
    models = {model: kind.models[model] for model in variant.models if model in kind.models}
    if variant.in_use:
        models = {
            model: replace(cost, swap_cold_s=STAYS * cost.swap_cold_s) for model, cost in models.items()
        }
    return Kind(host_memory_bytes=kind.host_memory_bytes, models=models)


def _instance(instance: InstanceMoment, kind: str, queue: tuple[GroupId, ...]) -> Instance:
    status = instance.status
    return Instance(
        id=status.id,
        kind=kind,
        loaded_model=instance.loaded,
        warm_models=tuple(model for model, state in status.engines if state.sleeps),
        busy=busy_time(instance),
        queue=queue,
    )


def _planned(moment: Moment, kinds: Mapping[str, _Variant], *, demotes: bool) -> Iterator[PlannedGroup]:
    waited = waited_shares(moment)
    known: dict[RequestClass, _Times] = {}

    def times_of(cls: RequestClass) -> _Times:
        if cls not in known:
            known[cls] = _Times.of(moment, cls, kinds, waited.get(cls.model, 1.0))
        return known[cls]

    waiting = [(group, view) for group, view in moment.groups if group.remaining]
    last_ns = last_arrivals_ns(waiting)
    for group, view in waiting:
        times, last = times_of(group.cls), last_ns[group.id]
        if demotes:
            planned = due_in_time(group, view, last, moment.now_ns, times.takes_s)
        else:
            planned = due(group, view, last, moment.now_ns)
        yield PlannedGroup(
            id=group.id,
            model=group.cls.model,
            requests=planned.requests,
            deadline_s=planned.deadline_s,
            priority=group.cls.priority,
            time=times.of_group(planned.requests),
        )


def _forms(
    moment: Moment, cls: RequestClass, kinds: Mapping[str, _Variant], waited: float
) -> dict[str, PlanningForm]:
    forms = {
        name: planning_form(moment, cls, variant.accelerator, waited)
        for name, variant in kinds.items()
        if cls.model in variant.models
    }
    return {name: form for name, form in forms.items() if form is not None}


@dataclass(slots=True)
class _Times:
    """Times of one class's groups: full groups are all alike."""

    forms: dict[str, PlanningForm] = field(default_factory=dict)
    known: dict[int, dict[str, GroupTime]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, moment: Moment, wanted: RequestClass, kinds: Mapping[str, _Variant], waited: float
    ) -> "_Times":
        return cls(_forms(moment, wanted, kinds, waited))

    @property
    def takes_s(self) -> float:
        """Seconds from start to objective where it is served fastest."""
        return min((form.tail.mean for form in self.forms.values()), default=0.0)

    def of_group(self, requests: int) -> dict[str, GroupTime]:
        if requests not in self.known:
            self.known[requests] = {name: form.time(requests) for name, form in self.forms.items()}
        return self.known[requests]

"""Builds the planning problem from a cluster snapshot: the plain data that planning methods work on."""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Final

from qlm.agents.core.scheduling.swap_hysteresis import SWAPS_THERE_AND_BACK
from qlm.controller.core.deadlines import deadline_demand, demand_with_demotion
from qlm.controller.core.estimating.planning_times import (
    FormInBatch,
    PlanningForm,
    PlanningForms,
    busy_time,
    waiting_requests,
)
from qlm.controller.core.estimating.queues import last_arrivals_ns
from qlm.controller.core.estimating.snapshot import InstanceSnapshot, Snapshot
from qlm.controller.core.fleet import Fleet, able_models
from qlm.controller.core.strand_homes import NO_HOMES, StrandHomes
from qlm.domain.fleet import EngineState
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.view import ClusterView
from qlm.planner.problem import GroupTime, Instance, Kind, PlannedGroup, Problem
from qlm.rct_estimator.recompute import discarded_s, recompute_token_s

NO_PLACEMENTS: Final[Mapping[GroupId, InstanceId]] = MappingProxyType({})
"""Every group stays on its present queue."""

IN_USE_COLD_STARTS: Final = 1 + SWAPS_THERE_AND_BACK
"""Cost of a cold start on an instance whose model is in use, in cold starts: the agent delays the swap by
`SWAPS_THERE_AND_BACK` times its duration first (`SwapHysteresis` in `agents.core.queue_head`)."""

NAMES_CHARACTERS_MAX: Final = 200
"""Longest list of models in the name of a kind."""

IN_USE_S: Final = 60.0
"""A model counts as in use if requests with a deadline arrive for it at least this often."""


@dataclass(frozen=True, slots=True)
class _Variant:
    """Instances that serve any group in equal times: a kind of the problem.

    Attributes:
        models: Models that they can serve now, sorted.
        loaded: Model that is loaded or being loaded.
        running: Requests that run or wait for a batch slot there.
        in_use: Requests with deadlines arrive for the model that is loaded.
        home: The instance, if it is the home of strands; else None.
    """

    accelerator: str
    models: tuple[ModelId, ...]
    loaded: ModelId | None = None
    running: int = 0
    in_use: bool = False
    home: InstanceId | None = None

    @property
    def name(self) -> str:
        """Key of the kind in the problem."""
        batch = f" {self.running} {self.loaded}" if self.running else ""
        home = f" home {self.home}" if self.home is not None else ""
        in_use = " in use" if self.in_use else ""
        return f"{self.accelerator}[{_names(self.models)}]{batch}{home}{in_use}"

    def batch(self, model: ModelId, requests: int, waiting: int) -> int:
        """Return the batch in which a group of that size will run, without the limit of the engine.

        On an instance with the model, it joins what runs there. After a swap, all that waits for the model
        may come along.
        """
        return self.running + requests if model == self.loaded else waiting


def _names(models: Sequence[ModelId]) -> str:
    """Return the names of models; if they are long together, their number and a digest of them.

    Each group of a problem has the name of each kind.
    """
    names = ",".join(models)
    if len(names) <= NAMES_CHARACTERS_MAX:
        return names
    digest = hashlib.blake2b("\n".join(models).encode(), digest_size=8).hexdigest()
    return f"{len(models)} models, {digest}"


def accelerator_of(kind: str) -> str:
    """Return the accelerator of a kind in a problem built by `make_problem`."""
    return kind.partition("[")[0]


def kinds_to_add(problem: Problem) -> dict[str, str]:
    """Return the kinds of which more instances would serve what waits, each with a short name.

    Kinds that differ only by what their instances run now are one: the one with the least running, since an
    added instance is idle. The name is the accelerator, with the models where its instances have different
    ones.
    """
    found: dict[tuple[str, tuple[ModelId, ...]], str] = {}
    for kind in sorted(problem.kinds, key=_load):
        models = problem.kinds[kind].models
        if any(group.model in models and kind in group.time for group in problem.groups):
            found.setdefault((accelerator_of(kind), tuple(sorted(models))), kind)
    times = Counter(accelerator for accelerator, _ in found)
    return {
        kind: accelerator if times[accelerator] == 1 else f"{accelerator} with {', '.join(models)}"
        for (accelerator, models), kind in sorted(found.items())
    }


def _load(kind: str) -> tuple[bool, int, str]:
    """Return a sort key of a kind: is its model in use, and what runs there."""
    running = re.search(r"\] (\d+) ", kind)
    return kind.endswith(" in use"), int(running[1]) if running else 0, kind


def make_problem(
    view: ClusterView,
    snapshot: Snapshot,
    *,
    move_s: float,
    placements: Mapping[GroupId, InstanceId] = NO_PLACEMENTS,
    demotes: bool = False,
    swap_hysteresis: bool = False,
    promise_s: float = 0.0,
    homes: StrandHomes = NO_HOMES,
) -> Problem:
    """Build the planning problem of all groups with waiting requests; times in seconds since the epoch.

    Args:
        view: The cluster.
        snapshot: The cluster with its estimates, and the groups after regrouping.
        move_s: Least gain for which a group is moved to another instance, seconds.
        placements: Instances of groups that are on no queue yet, or are to change it.
        demotes: Agents demote requests that can no longer meet their deadline.
        swap_hysteresis: Agents delay cold starts for deferrable work while their model is in use.
        promise_s: Price of one request short of a promise.
        homes: Homes of strands; groups of strands take longer elsewhere.
    """
    queues = {queue.instance: [g.id for g in queue.groups if g.id not in placements] for queue in view.queues}
    for group, home in placements.items():
        queues.setdefault(home, []).append(group)
    variants = {
        id: _variant(each, snapshot, swap_hysteresis=swap_hysteresis, homes=homes)
        for id, each in snapshot.instances.items()
    }
    kinds = {variant.name: variant for variant in variants.values()}
    return Problem(
        now_s=snapshot.now_ns / 1e9,
        move_s=move_s,
        promise_s=promise_s,
        kinds={name: _kind(snapshot.fleet.kinds[each.accelerator], each) for name, each in kinds.items()},
        instances=tuple(
            _instance(each, variants[id].name, tuple(queues.get(id, ())), snapshot.fleet)
            for id, each in snapshot.instances.items()
        ),
        groups=tuple(_planned(snapshot, kinds, homes, demotes=demotes)),
    )


def arriving_forms(
    snapshot: Snapshot, problem: Problem, classes: Iterable[RequestClass]
) -> dict[RequestClass, dict[str, FormInBatch]]:
    """Return the times of a request that arrives now, by kind of the problem that can run its class.

    All that waits for its model may be in its batch.
    """
    kinds = {
        each.kind: _variant(snapshot.instances[each.id], snapshot, swap_hysteresis=False)
        for each in problem.instances
    }
    known, waiting = PlanningForms(snapshot), waiting_requests(snapshot)
    found: dict[RequestClass, dict[str, FormInBatch]] = {}
    for cls in classes:
        requests = waiting[cls.model] + 1
        forms = _forms(known, cls, kinds).items()
        batches = {kind: kinds[kind].batch(cls.model, requests, requests) for kind, _ in forms}
        found[cls] = {kind: FormInBatch(form, batches[kind]) for kind, form in forms}
    return found


def _variant(
    instance: InstanceSnapshot, snapshot: Snapshot, *, swap_hysteresis: bool, homes: StrandHomes = NO_HOMES
) -> _Variant:
    """Return the variant of an instance, without models whose engine has failed."""
    status = instance.status
    in_use = swap_hysteresis and any(
        cls.model == instance.loaded and cls.due_ms is not None and each.rate_rps > 1 / IN_USE_S
        for cls, each in snapshot.state.arrivals.items()
    )
    return _Variant(
        accelerator=status.accelerator,
        models=tuple(sorted(able_models(status))),
        loaded=instance.loaded,
        running=_running(instance, snapshot),
        in_use=in_use,
        home=status.id if status.id in homes.homes() else None,
    )


def _running(instance: InstanceSnapshot, snapshot: Snapshot) -> int:
    """Return the batch that a group joins, at most the full one: beyond it, no times differ."""
    status = instance.status
    if instance.loaded is None:
        return 0
    full = snapshot.full_batches.get((instance.loaded, status.accelerator), math.inf)
    return math.ceil(min(status.running + status.parked, full))


def _kind(kind: Kind, variant: _Variant) -> Kind:
    models = {model: kind.models[model] for model in variant.models if model in kind.models}
    if variant.in_use:
        models = {
            model: replace(cost, swap_cold_s=IN_USE_COLD_STARTS * cost.swap_cold_s)
            for model, cost in models.items()
        }
    return Kind(host_memory_bytes=kind.host_memory_bytes, models=models)


def _instance(instance: InstanceSnapshot, kind: str, queue: tuple[GroupId, ...], fleet: Fleet) -> Instance:
    status = instance.status
    unloaded = tuple(model for model, state in status.engines if state is EngineState.UNLOADED)
    return Instance(
        id=status.id,
        kind=kind,
        loaded_model=instance.loaded,
        warm_models=tuple(model for model, state in status.engines if state.sleeps),
        unloaded_models=unloaded,
        busy=busy_time(instance),
        leave_s=_leave_s(instance, fleet),
        queue=queue,
    )


def _leave_s(instance: InstanceSnapshot, fleet: Fleet) -> float:
    """Return what the instance loses if it leaves its model now: an agent weighs its visits by the same."""
    status, model = instance.status, instance.loaded
    profile = None if model is None else fleet.profiles.get((model, status.accelerator))
    if profile is None or not status.running:
        return 0.0
    return discarded_s(status.kv_used_tokens, recompute_token_s(profile))


def _planned(
    snapshot: Snapshot, kinds: Mapping[str, _Variant], homes: StrandHomes, *, demotes: bool
) -> Iterator[PlannedGroup]:
    forms_of = PlanningForms(snapshot)
    known: dict[RequestClass, _Times] = {}
    waiting = [(group, view) for group, view in snapshot.groups if group.remaining]
    of_model = waiting_requests(snapshot)

    def times_of(cls: RequestClass) -> _Times:
        if cls not in known:
            forms = _forms(forms_of, cls, kinds)
            away_s = {
                name: homes.away_s(cls, form.entry, kinds[name].home) * form.correction.factor
                for name, form in (forms.items() if homes.home(cls) is not None else ())
            }
            known[cls] = _Times(cls.model, of_model[cls.model], kinds, forms, away_s)
        return known[cls]

    last_ns = last_arrivals_ns(waiting)
    cls: RequestClass | None = None
    for group, view in waiting:
        if group.cls is not cls:  # neighbours often share it, and its hash takes time
            cls, times = group.cls, times_of(group.cls)
        last = last_ns[group.id]
        if demotes:
            planned = demand_with_demotion(group, view, last, snapshot.now_ns, times.takes_s)
        else:
            planned = deadline_demand(group, view, last, snapshot.now_ns)
        yield PlannedGroup(
            id=group.id,
            model=group.cls.model,
            requests=planned.requests,
            deadline_s=planned.deadline_s,
            priority=group.cls.priority,
            time=times.of_group(planned.requests),
            cls=group.cls.queue,
            p_met=None if group.cls.late else view.extensions.p_met,
            request_tokens=times.request_tokens,
        )


def _forms(known: PlanningForms, cls: RequestClass, kinds: Mapping[str, _Variant]) -> dict[str, PlanningForm]:
    accelerators = {variant.accelerator for variant in kinds.values() if cls.model in variant.models}
    of_accelerator = {each: known.of(cls, each) for each in sorted(accelerators)}
    forms = {
        name: of_accelerator[variant.accelerator]
        for name, variant in kinds.items()
        if cls.model in variant.models
    }
    return {name: form for name, form in forms.items() if form is not None}


@dataclass
class _Times:
    """Times of the groups of one class, cached by size: all full groups are equal.

    Attributes:
        waiting: Requests that wait for the model.
        away_s: What each request takes more on a kind, as far from the home of its strand.
    """

    model: ModelId
    waiting: int
    kinds: Mapping[str, _Variant]
    forms: Mapping[str, PlanningForm]
    away_s: Mapping[str, float] = field(default_factory=dict)
    known: dict[int, dict[str, GroupTime]] = field(default_factory=dict)

    @cached_property
    def takes_s(self) -> float:
        """Seconds from the start of a request to what its SLO measures, on the fastest kind."""
        return min((form.takes_s for form in self.forms.values()), default=0.0)

    @cached_property
    def request_tokens(self) -> float:
        """Expected prompt and answer of a request; 0 if it runs nowhere."""
        demands = (form.entry.on_kind.state.workload for form in self.forms.values())
        return next((each.prompt_tokens + each.output.mean for each in demands), 0.0)

    def of_group(self, requests: int) -> dict[str, GroupTime]:
        if requests not in self.known:
            self.known[requests] = self._compute(requests)
        return self.known[requests]

    def _compute(self, requests: int) -> dict[str, GroupTime]:
        times: dict[str, GroupTime] = {}
        equal: dict[tuple[str, int], GroupTime] = {}
        for name, form in self.forms.items():
            variant = self.kinds[name]
            key = (variant.accelerator, variant.batch(self.model, requests, self.waiting))
            if key not in equal:
                equal[key] = form.time(requests, key[1])
            away_s = self.away_s.get(name, 0.0)
            times[name] = equal[key].longer(requests * away_s, away_s) if away_s else equal[key]
        return times

"""Service times of each class on each kind of accelerator, kept from one view to the next.

Each class is treated as alone in its batch. Waits behind several classes of a model are still correct: the
batch slots or the KV cache over time that requests occupy add up, however they are mixed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from qlm.controller.core.estimating.classes import ClassPosterior
from qlm.controller.core.estimating.kv_occupancy import INDEPENDENT, KvOccupancy
from qlm.controller.core.fleet import Fleet
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.domain.view import ClusterView
from qlm.rct_estimator.cluster.batch_tails import BatchTails
from qlm.rct_estimator.cluster.service_table import (
    ClassOnKind,
    ClassTimes,
    ServiceTable,
    SwapTimes,
    class_times,
    response_s,
    service_table,
)
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.readers import paced_state

OCCUPANCY_MOVED: Final = 0.02
"""Change of a `KvOccupancy` term above which an entry is computed again."""


@dataclass(frozen=True, slots=True, eq=False)
class ClassEntry:
    """A class on a kind of accelerator, with the inputs it was computed from.

    Attributes:
        posterior: Posterior of the class.
        profile: Profile of its model on the kind.
        on_kind: Steady state of the engine with the class.
        times: The entry of the service table.
        response: Time from a batch slot to what the SLO measures, seconds.
        first_token: Time from a batch slot to the first token, seconds.
        answer: Time from a batch slot to the end, seconds.
        tails: Time from a batch slot to what the SLO measures, by the size of the batch.
        begins: Time from a batch slot to the first token, by the size of the batch.
        ends: Time from a batch slot to the end, by the size of the batch.
        occupancy: KV occupancy terms of its model on the kind.
    """

    posterior: ClassPosterior
    profile: Profile
    on_kind: ClassOnKind
    times: ClassTimes
    response: Normal
    first_token: Normal
    answer: Normal
    tails: BatchTails
    begins: BatchTails
    ends: BatchTails
    occupancy: KvOccupancy = INDEPENDENT

    def is_current(self, posterior: ClassPosterior, profile: Profile, occupancy: KvOccupancy) -> bool:
        """Return whether the entry is still valid for these inputs."""
        moved = abs(occupancy.prompt_bias - self.occupancy.prompt_bias) > OCCUPANCY_MOVED
        moved |= abs(occupancy.cost_dispersion - self.occupancy.cost_dispersion) > OCCUPANCY_MOVED
        return posterior is self.posterior and profile is self.profile and not moved


@dataclass(frozen=True, slots=True, eq=False)
class ServiceTimes:
    """Service times of all classes on all kinds.

    Attributes:
        entries: Entries by class and kind; a class without an entry cannot run on that kind.
        cls: Index of each class on the classes axis of `table`.
        kind: Index of each kind.
        model: Index of each model.
        table: The entries as arrays.
    """

    entries: Mapping[tuple[RequestClass, str], ClassEntry] = field(default_factory=dict)
    cls: Mapping[RequestClass, int] = field(default_factory=dict)
    kind: Mapping[str, int] = field(default_factory=dict)
    model: Mapping[ModelId, int] = field(default_factory=dict)
    table: ServiceTable = field(default_factory=lambda: service_table([], {}, {}, kinds=0))


NO_TIMES: Final = ServiceTimes()
"""The times of no class."""


def service_times(
    view: ClusterView,
    fleet: Fleet,
    classes: Mapping[RequestClass, ClassPosterior],
    profiles: Mapping[tuple[ModelId, str], Profile],
    occupancies: Mapping[tuple[ModelId, str], KvOccupancy],
    before: ServiceTimes,
) -> ServiceTimes:
    """Return the service times after recomputing outdated entries; `before` itself if there are none."""
    kinds = sorted({status.accelerator for status in view.instances} & fleet.kinds.keys())
    entries: dict[tuple[RequestClass, str], ClassEntry] = {}
    for cls, posterior in classes.items():
        for kind in kinds:
            profile = profiles.get((cls.model, kind))
            if profile is None or cls.model not in fleet.kinds[kind].models:
                continue
            known = before.entries.get((cls, kind))
            occupancy = occupancies.get((cls.model, kind), INDEPENDENT)
            if known is None or not known.is_current(posterior, profile, occupancy):
                known = class_entry(cls, posterior, profile, occupancy, bounds_readers=fleet.bounds_readers)
            entries[cls, kind] = known
    if _same(entries, before.entries) and list(before.cls) == list(classes) and list(before.kind) == kinds:
        return before
    return _indexed(entries, classes, kinds, fleet)


def class_entry(
    cls: RequestClass,
    posterior: ClassPosterior,
    profile: Profile,
    occupancy: KvOccupancy = INDEPENDENT,
    *,
    bounds_readers: bool = True,
) -> ClassEntry:
    """Compute the entry of one class on one kind.

    Args:
        cls: The class.
        posterior: Its posterior.
        profile: Profile of its model on the kind.
        occupancy: KV occupancy terms of its model there.
        bounds_readers: Its batch is one that keeps up with its readers (`Fleet.bounds_readers`).
    """
    pace = cls.tokens_per_s if bounds_readers else None
    workload = replace(
        posterior.workload, prompt_bias=occupancy.prompt_bias, cost_dispersion=occupancy.cost_dispersion
    )
    state = paced_state(profile, workload, pace)
    on_kind = ClassOnKind(state=state, lengths=posterior.lengths, cap=posterior.cap, tokens_per_s=pace)
    about_first = cls.about_first_token
    times = class_times(on_kind, first_token=about_first)
    response = _normal(times.response_s)
    other = _normal(response_s(on_kind, first_token=not about_first))
    first, answer = (response, other) if about_first else (other, response)
    if pace is not None:
        first = Normal(state.prefill_s)
    tails = BatchTails(profile, on_kind, first_token=about_first)
    begins = BatchTails(profile, replace(on_kind, tokens_per_s=None), first_token=True)
    ends = BatchTails(profile, on_kind, first_token=False)
    return ClassEntry(
        posterior, profile, on_kind, times, response, first, answer, tails, begins, ends, occupancy
    )


def _normal(equally_likely_s: FloatArray) -> Normal:
    return Normal(float(equally_likely_s.mean()), float(equally_likely_s.var()))


def _same(
    entries: Mapping[tuple[RequestClass, str], ClassEntry],
    before: Mapping[tuple[RequestClass, str], ClassEntry],
) -> bool:
    return len(entries) == len(before) and all(before.get(at) is entry for at, entry in entries.items())


def _indexed(
    entries: Mapping[tuple[RequestClass, str], ClassEntry],
    classes: Mapping[RequestClass, ClassPosterior],
    kinds: list[str],
    fleet: Fleet,
) -> ServiceTimes:
    served = {cls.model for cls in classes} | {m for kind in kinds for m in fleet.kinds[kind].models}
    index = {cls: at for at, cls in enumerate(classes)}
    kind_index = {kind: at for at, kind in enumerate(kinds)}
    model_index = {model: at for at, model in enumerate(sorted(served))}
    table = service_table(
        [model_index[cls.model] for cls in classes],
        {(index[cls], kind_index[kind]): entry.times for (cls, kind), entry in entries.items()},
        {
            (model_index[model], at): SwapTimes(
                warm_s=cost.swap_warm_s, cold_s=cost.swap_cold_s, unload_s=cost.unload_s
            )
            for kind, at in kind_index.items()
            for model, cost in fleet.kinds[kind].models.items()
        },
        kinds=len(kinds),
    )
    return ServiceTimes(entries, index, kind_index, model_index, table)

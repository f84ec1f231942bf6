"""How long each class takes on each kind of accelerator, kept from one view to the next.

Each class is taken as alone in its batch. Waits behind several classes of a model still come out right:
what a class's requests hold, places or KV cache over time, adds up whatever they are mixed with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from qlm.controller.estimating.classes import ClassPosterior
from qlm.controller.estimating.held import INDEPENDENT, HeldShape
from qlm.controller.fleet import Fleet
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.domain.view import ClusterView
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profile import Profile
from qlm.rct_estimator.service_table import (
    ClassOnKind,
    ClassTimes,
    ServiceTable,
    SwapTimes,
    class_times,
    response_s,
    service_table,
)
from qlm.rct_estimator.throughput import steady_state

HELD_MOVED: Final = 0.02
"""Change of a `HeldShape` below which nothing is worked out anew."""


@dataclass(frozen=True, slots=True, eq=False)
class ClassEntry:
    """A class on a kind of accelerator, with what that was worked out from.

    Attributes:
        posterior: What is known of the class.
        profile: What is known of the kind.
        on_kind: The engine in its steady state with the class.
        times: What follows, as a row of the table.
        response: From a place in the batch to the moment of the objective, seconds.
        first_token: To the first token.
        answer: To the end.
        shape: Of its model on the kind.
    """

    posterior: ClassPosterior
    profile: Profile
    on_kind: ClassOnKind
    times: ClassTimes
    response: Normal
    first_token: Normal
    answer: Normal
    shape: HeldShape = INDEPENDENT

    def stands(self, posterior: ClassPosterior, profile: Profile, shape: HeldShape) -> bool:
        """Whether it still follows from these."""
        moved = abs(shape.ratio - self.shape.ratio) > HELD_MOVED
        moved |= abs(shape.scatter - self.shape.scatter) > HELD_MOVED
        return posterior is self.posterior and profile is self.profile and not moved


@dataclass(frozen=True, slots=True, eq=False)
class ServiceTimes:
    """All of them.

    Attributes:
        entries: By class and kind; what is missing cannot run there.
        cls: Place of each class on the classes axis of `table`.
        kind: Likewise of each kind.
        model: Likewise of each model.
        table: The same as arrays.
    """

    entries: Mapping[tuple[RequestClass, str], ClassEntry] = field(default_factory=dict)
    cls: Mapping[RequestClass, int] = field(default_factory=dict)
    kind: Mapping[str, int] = field(default_factory=dict)
    model: Mapping[ModelId, int] = field(default_factory=dict)
    table: ServiceTable = field(default_factory=lambda: service_table([], {}, {}, kinds=0))


NO_TIMES: Final = ServiceTimes()
"""Of no class."""


def about_first_token(cls: RequestClass) -> bool:
    """Whether a class's objective is met by the first token, not by the end of the answer."""
    return cls.slo.startswith("ttft-")


def service_times(
    view: ClusterView,
    fleet: Fleet,
    classes: Mapping[RequestClass, ClassPosterior],
    profiles: Mapping[tuple[ModelId, str], Profile],
    shapes: Mapping[tuple[ModelId, str], HeldShape],
    before: ServiceTimes,
) -> ServiceTimes:
    """Work out what has moved, and keep the rest; `before` itself if nothing has."""
    kinds = sorted({status.accelerator for status in view.instances} & fleet.kinds.keys())
    entries: dict[tuple[RequestClass, str], ClassEntry] = {}
    for cls, posterior in classes.items():
        for kind in kinds:
            profile = profiles.get((cls.model, kind))
            if profile is None or cls.model not in fleet.kinds[kind].models:
                continue
            known, shape = before.entries.get((cls, kind)), shapes.get((cls.model, kind), INDEPENDENT)
            if known is None or not known.stands(posterior, profile, shape):
                known = class_entry(cls, posterior, profile, shape)
            entries[cls, kind] = known
    if _same(entries, before.entries) and list(before.cls) == list(classes) and list(before.kind) == kinds:
        return before
    return _indexed(entries, classes, kinds, fleet)


def class_entry(
    cls: RequestClass, posterior: ClassPosterior, profile: Profile, shape: HeldShape = INDEPENDENT
) -> ClassEntry:
    """Work out one class on one kind."""
    workload = replace(posterior.workload, held_ratio=shape.ratio, scatter=shape.scatter)
    state = steady_state(profile, workload)
    on_kind = ClassOnKind(state=state, lengths=posterior.lengths, cap=posterior.cap)
    about_first = about_first_token(cls)
    times = class_times(on_kind, first_token=about_first)
    response = _normal(times.response_s)
    other = _normal(response_s(on_kind, first_token=not about_first))
    first, answer = (response, other) if about_first else (other, response)
    return ClassEntry(posterior, profile, on_kind, times, response, first, answer, shape)


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

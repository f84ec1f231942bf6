"""The batch that a request will run in: how full it will be, how it will be mixed, and how fast it goes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from qlm.controller.estimating.moment import InstanceMoment, Moment
from qlm.controller.estimating.overtaking import coming
from qlm.controller.estimating.prefill_queue import Prefills, first_token_s
from qlm.controller.estimating.service_times import ClassEntry
from qlm.domain.group import RequestClass
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.throughput import SteadyState, full_batch, steady_state
from qlm.rct_estimator.waiting_time import QueuePart
from qlm.rct_estimator.workload import Workload, mixture

RESIDENCE_DOUBT: Final = 0.04
"""How far the time that a request spends in a full batch is off: relative standard deviation (simulated
engine: requests per second 0 to 3 %, time per token 0.4 to 8 %)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnBatch:
    """The batch of one request.

    Attributes:
        entry: Of its class.
        state: Of the instance for its class, at that batch.
        shared: Of the instance for all that share the batch.
        works: Requests per second that come to the batch, and their lengths.
        factor: How much slower the instance is than its profile.
    """

    entry: ClassEntry
    state: SteadyState
    shared: SteadyState
    works: Sequence[tuple[float, Workload]]
    factor: float

    def first_token_s(self, prompt_tokens: int | None) -> FloatArray:
        """From its place to its first token: equally likely values, rising, seconds.

        Args:
            prompt_tokens: Its prompt, if known.
        """
        shared, factor = self.shared, self.factor
        running = shared.batch - 1
        prefills = Prefills(self.entry.profile, running, shared.decode_s / factor if running > 0 else 0.0)
        # Where the token budget is what bounds, prompts pile up until so many wait that as few decode as
        # it has room for. How many these are varies as a number of independent requests does; and what is
        # left of the time in the batch without them is no better known than that.
        mean_s = max(0.0, shared.prefill_s - shared.own_prefill_s)
        decodes = (shared.workload.output.mean - 1) * shared.iteration_s / shared.request_s
        spread = max(0.0, decodes) + (RESIDENCE_DOUBT * shared.batch) ** 2
        piled = Normal(mean_s, spread * shared.request_s**2).scaled(1 / factor)
        values = first_token_s(prefills, self.works, self.state.workload, prompt_tokens, piled)
        return np.asarray(values * factor)


def own_batch(
    moment: Moment, instance: InstanceMoment, entry: ClassEntry, parts: list[QueuePart], own: SteadyState
) -> OwnBatch:
    """Work out the batch that a request will run in: as full as it will be, and mixed as it will be.

    A batch that is not full stays about as full as it is. One that several classes share runs at the
    pace of their mixture, each weighted by the places it takes.

    Args:
        moment: The present.
        instance: Where it will run.
        entry: Of its class there.
        parts: The queue up to and including it.
        own: The full batch of its class alone, corrected.
    """
    run = _run_of_last(parts)
    requests = sum(part.requests for part in run)
    running = 0.0 if run[0].swap is not None else float(instance.status.running + instance.status.parked)
    beside = _running(moment, instance, entry, running)
    alike = {part.cls for part in run} >= {cls for cls, _, _ in beside} and len({p.cls for p in run}) == 1
    shares: list[tuple[float, Workload]] = [(p.requests, p.state.workload) for p in run if p.requests]
    mixed = own.workload if alike else mixture([*shares, *((n, work) for _, n, work in beside)])
    places = own.batch if alike else full_batch(entry.profile, mixed)
    batch = min(places, running + requests)
    shared = steady_state(entry.profile, mixed, batch=batch).corrected(instance.correction)
    if alike and batch >= places:
        state = replace(own, queue_s=0.0)
    else:
        alone = steady_state(entry.profile, own.workload, batch=batch).corrected(instance.correction)
        state = replace(alone, iteration_s=shared.iteration_s)
    works = [] if batch >= places else _coming(moment, instance, entry)
    return OwnBatch(
        entry=entry,
        state=state,
        shared=shared,
        # A full batch takes in as many as end, and so does one of which nobody was counted yet.
        works=works or [(instance.correction.factor / shared.request_s, mixed)],
        factor=instance.correction.factor,
    )


def _coming(moment: Moment, instance: InstanceMoment, entry: ClassEntry) -> list[tuple[float, Workload]]:
    """What will arrive for the model: requests per second, and their lengths."""
    entries, kind = moment.state.times.entries, instance.status.accelerator
    known = [(each, entries[each.cls, kind]) for each in coming(moment, instance)]
    return [
        (each.share / each.request_s, other.on_kind.state.workload)
        for each, other in known
        if other.profile is entry.profile
    ]


def _running(
    moment: Moment, instance: InstanceMoment, entry: ClassEntry, running: float
) -> list[tuple[RequestClass, float, Workload]]:
    """Split what runs over the classes of its model, as fast as they arrive; nobody counts them."""
    rates = [
        (cls, each.rate_rps, moment.state.times.entries[cls, instance.status.accelerator])
        for cls, each in moment.state.arrivals.items()
        if each.count and (cls, instance.status.accelerator) in moment.state.times.entries
    ]
    of_model = [(c, r, e.on_kind.state.workload) for c, r, e in rates if e.profile is entry.profile]
    total = sum(rate for _, rate, _ in of_model)
    return [(cls, running * rate / total, work) for cls, rate, work in of_model if running]


def _run_of_last(parts: list[QueuePart]) -> list[QueuePart]:
    """The parts from the last model change on."""
    for at in range(len(parts) - 1, -1, -1):
        if parts[at].swap is not None:
            return parts[at:]
    return parts

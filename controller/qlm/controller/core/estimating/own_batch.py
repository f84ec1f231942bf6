"""The batch in which a request will run: its size, its mixture of classes, and its speed."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from qlm.controller.core.estimating.overtaking import expected_arrivals
from qlm.controller.core.estimating.prefill_queue import PrefillCosts, first_token_s
from qlm.controller.core.estimating.service_times import ClassEntry
from qlm.controller.core.estimating.snapshot import InstanceSnapshot, Snapshot
from qlm.domain.group import RequestClass
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.readers import paced_state
from qlm.rct_estimator.throughput import SteadyState, full_batch, steady_state
from qlm.rct_estimator.waiting_time import QueuePart
from qlm.rct_estimator.workload import Workload, mixture

RESIDENCE_UNCERTAINTY: Final = 0.04
"""Relative standard deviation of the error of a request's time in a full batch (simulated engine: requests
per second 0 to 3 %, time per token 0.4 to 8 %)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnBatch:
    """The batch in which one request will run.

    Attributes:
        entry: Service times of its class.
        state: Steady state for its class at that batch size.
        shared: Steady state for the mixture of classes in the batch.
        arriving: Requests per second that join the batch, and their workload.
        factor: Speed correction of the instance.
    """

    entry: ClassEntry
    state: SteadyState
    shared: SteadyState
    arriving: Sequence[tuple[float, Workload]]
    factor: float

    def first_token_s(self, prompt_tokens: int | None) -> FloatArray:
        """Return the time from its batch slot to its first token: equally likely values, ascending, seconds.

        Args:
            prompt_tokens: Length of its prompt, if known.
        """
        shared, factor = self.shared, self.factor
        running = shared.batch - 1
        prefills = PrefillCosts(
            profile=self.entry.profile,
            running=running,
            context_tokens=shared.workload.context_tokens,
            decode_s=shared.decode_s / factor if running > 0 else 0.0,
        )
        # Where the token budget is the bottleneck, prompts queue until the number of decodes fits the budget.
        # That number varies like a count of independent requests. The time in the batch without decodes is
        # no better known than `RESIDENCE_UNCERTAINTY`.
        mean_s = max(0.0, shared.prefill_s - shared.own_prefill_s)
        decodes = (shared.workload.output.mean - 1) * shared.iteration_s / shared.request_s
        count_var = max(0.0, decodes) + (RESIDENCE_UNCERTAINTY * shared.batch) ** 2
        queued = Normal(mean_s, count_var * shared.request_s**2).scaled(1 / factor)
        values = first_token_s(prefills, self.arriving, self.state.workload, prompt_tokens, queued)
        return np.asarray(values * factor)


def own_batch(
    snapshot: Snapshot,
    instance: InstanceSnapshot,
    entry: ClassEntry,
    parts: list[QueuePart],
    own: SteadyState,
) -> OwnBatch:
    """Return the batch in which a request will run, with its size and mixture.

    A batch that is not full keeps about its size. A batch of several classes runs at the speed of their
    mixture, each weighted by its batch slots.

    Args:
        snapshot: The cluster.
        instance: The instance that will run the request.
        entry: Service times of its class there.
        parts: The queue up to and including the request.
        own: Full batch of its class alone, corrected.
    """
    run = _run_of_last(parts)
    requests = sum(part.requests for part in run)
    running = 0.0 if run[0].swap is not None else float(instance.status.running + instance.status.parked)
    beside = _running(snapshot, instance, entry, running)
    alike = {part.cls for part in run} >= {cls for cls, _, _ in beside} and len({p.cls for p in run}) == 1
    shares: list[tuple[float, Workload]] = [(p.requests, p.state.workload) for p in run if p.requests]
    mixed = own.workload if alike else mixture([*shares, *((n, work) for _, n, work in beside)])
    slots = (
        own.batch
        if alike
        else _slots(snapshot, entry, mixed, [*(p.cls for p in run), *(cls for cls, _, _ in beside)])
    )
    batch = min(slots, running + requests)
    shared = steady_state(entry.profile, mixed, batch=batch).corrected(instance.correction)
    if alike and batch >= slots:
        state = replace(own, queue_s=0.0)
    else:
        alone = steady_state(entry.profile, own.workload, batch=batch).corrected(instance.correction)
        state = replace(alone, iteration_s=shared.iteration_s)
    arriving = [] if batch >= slots else _arriving(snapshot, instance, entry)
    return OwnBatch(
        entry=entry,
        state=state,
        shared=shared,
        # A full batch admits as many as end; the same is assumed before any arrival was counted.
        arriving=arriving or [(instance.correction.factor / shared.request_s, mixed)],
        factor=instance.correction.factor,
    )


def _slots(snapshot: Snapshot, entry: ClassEntry, mixed: Workload, classes: Iterable[Hashable]) -> float:
    """Return the size of a full batch of several classes; its fastest reader bounds it for all."""
    paces = [cls.tokens_per_s or 0.0 for cls in classes if isinstance(cls, RequestClass)]
    fastest = max(paces, default=0.0)
    if not (fastest and snapshot.fleet.bounds_readers):
        return full_batch(entry.profile, mixed)
    return paced_state(entry.profile, mixed, fastest).batch


def _arriving(
    snapshot: Snapshot, instance: InstanceSnapshot, entry: ClassEntry
) -> list[tuple[float, Workload]]:
    """Return the expected arrivals for the model: requests per second, and their workload."""
    entries, kind = snapshot.state.times.entries, instance.status.accelerator
    known = [(each, entries[each.cls, kind]) for each in expected_arrivals(snapshot, instance)]
    return [
        (each.share / each.request_s, other.on_kind.state.workload)
        for each, other in known
        if other.profile is entry.profile
    ]


def _running(
    snapshot: Snapshot, instance: InstanceSnapshot, entry: ClassEntry, running: float
) -> list[tuple[RequestClass, float, Workload]]:
    """Split the running requests over the classes of their model by arrival rate."""
    rates = [
        (cls, each.rate_rps, snapshot.state.times.entries[cls, instance.status.accelerator])
        for cls, each in snapshot.state.arrivals.items()
        if each.count and (cls, instance.status.accelerator) in snapshot.state.times.entries
    ]
    of_model = [(c, r, e.on_kind.state.workload) for c, r, e in rates if e.profile is entry.profile]
    total = sum(rate for _, rate, _ in of_model)
    return [(cls, running * rate / total, work) for cls, rate, work in of_model if running]


def _run_of_last(parts: list[QueuePart]) -> list[QueuePart]:
    """Return the parts since the last model swap."""
    for at in range(len(parts) - 1, -1, -1):
        if parts[at].swap is not None:
            return parts[at:]
    return parts

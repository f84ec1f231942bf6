"""Token clusters as state of the controller: counts of prompt lengths in, thresholds out (QLM, algorithm 1).

Thresholds are sticky. One is taken at once where the lengths call for it, and given up only after it has not
been worth keeping for `HOLD_NS`. A controller that takes over goes on from the published ones.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import numpy as np

from qlm.controller.core.division import OCTAVE, PromptLengths, has_valley, is_worth_keeping, new_threshold
from qlm.controller.core.estimating.service_times import ClassEntry
from qlm.controller.core.estimating.state import EstimatorState
from qlm.controller.core.strand_homes import strand_counts
from qlm.domain.formats.clusters import CLASSES_MAX, NO_CLUSTERS, Clusters, Thresholds, undivided
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.domain.length_histogram import LENGTH_BINS, LENGTH_EDGES
from qlm.domain.view import ClassView, ClusterView
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.throughput import steady_state

CHECK_NS: Final = 10_000_000_000
"""Time between two readings of the counts."""

HOLD_NS: Final = 600_000_000_000
"""Time for which a threshold must not have been worth keeping before it is given up."""

WINDOW: Final = 5000.0
"""Requests after which a request weighs 1/e in its class."""

REQUESTS_MIN: Final = 100.0
"""Requests of a class, by weight, from which on its lengths are judged."""

_NOTHING: Final = (0,) * LENGTH_BINS


@dataclass(frozen=True, slots=True, eq=False)
class PromptCounts:
    """Prompt lengths of a class, all its clusters together.

    Attributes:
        seen: Counts of each of its clusters at the last reading.
        weights: Requests per bin, older ones weighing less.
        at_ns: Time of the last reading with a request.
    """

    seen: Mapping[RequestClass, tuple[int, ...]]
    weights: FloatArray
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClusterState:
    """What the controller knows of prompt lengths.

    Attributes:
        clusters: The division in use.
        counts: Prompt lengths by class with the cluster `all`.
        doubted_ns: Since when a threshold has not been worth keeping.
        fewer_ns: Since when a model has had fewer instances than strands.
        checked_ns: Time of the last reading.
    """

    clusters: Clusters = NO_CLUSTERS
    counts: Mapping[RequestClass, PromptCounts] = field(default_factory=dict)
    doubted_ns: Mapping[tuple[RequestClass, int], int] = field(default_factory=dict)
    fewer_ns: Mapping[ModelId, int] = field(default_factory=dict)
    checked_ns: int = 0


NOTHING_COUNTED: Final = ClusterState()
"""State of a controller that has read neither counts nor published clusters."""


def update_clusters(
    state: ClusterState,
    view: ClusterView,
    estimator: EstimatorState,
    *,
    now_ns: int,
    automatic: bool,
    fixed: Mapping[ModelId, Thresholds],
) -> ClusterState:
    """Return the state after a view; `state` itself between two readings.

    Args:
        state: State so far.
        view: The cluster.
        estimator: Service times of the classes.
        now_ns: The present, nanoseconds since the epoch.
        automatic: Divide classes of models that are not in `fixed`.
        fixed: Thresholds of models.
    """
    if abs(now_ns - state.checked_ns) < CHECK_NS:  # also after a clock was set back
        return state
    if not automatic:
        clusters = Clusters(fixed=fixed, strands=state.clusters.strands)
        return replace(NOTHING_COUNTED, clusters=clusters, fewer_ns=state.fewer_ns, checked_ns=now_ns)
    counts = _read(state.counts, view, now_ns)
    found: dict[RequestClass, Thresholds] = {}
    doubted: dict[tuple[RequestClass, int], int] = {}
    for cls, standing in _to_judge(state, counts, fixed):
        lengths = _lengths(cls, standing, counts.get(cls), estimator)
        if lengths is None:
            found[cls] = standing
            doubted |= {at: since for at, since in state.doubted_ns.items() if at[0] == cls}
            continue
        kept, doubts = _kept(cls, standing, lengths, state.doubted_ns, now_ns)
        doubted |= doubts
        added = new_threshold(lengths, kept)
        found[cls] = kept if added is None else tuple(sorted((*kept, added)))
    found = {cls: thresholds for cls, thresholds in found.items() if thresholds}
    strands = state.clusters.strands
    clusters = Clusters(fixed=fixed, found=dict(list(found.items())[:CLASSES_MAX]), strands=strands)
    unchanged = clusters == state.clusters
    return replace(
        state,
        clusters=state.clusters if unchanged else clusters,
        counts=counts,
        doubted_ns=doubted,
        checked_ns=now_ns,
    )


def with_strands(state: ClusterState, view: ClusterView, now_ns: int) -> ClusterState:
    """Return the state with the strands of tasks: more at once, fewer after `HOLD_NS`.

    Each change moves some tasks to other strands, away from their blocks, and instances restart.
    """
    before = state.clusters.strands
    now = strand_counts(view, {model for status in view.instances for model in status.models})
    fewer = {
        model: state.fewer_ns.get(model, now_ns) for model, each in before.items() if now.get(model, 1) < each
    }
    kept = {model: before[model] for model, since_ns in fewer.items() if now_ns - since_ns < HOLD_NS}
    fewer_ns = {model: fewer[model] for model in kept}
    strands = {**now, **kept}
    if strands == before and fewer_ns == state.fewer_ns:
        return state
    clusters = state.clusters if strands == before else replace(state.clusters, strands=strands)
    return replace(state, clusters=clusters, fewer_ns=fewer_ns)


def with_published(state: ClusterState, published: Clusters) -> ClusterState:
    """Return the state of a controller that takes over from the one that published these clusters."""
    found = {cls: each for cls, each in published.found.items() if set(each) <= set(LENGTH_EDGES)}
    return replace(state, clusters=replace(published, found=found), doubted_ns={}, fewer_ns={}, checked_ns=0)


def _to_judge(
    state: ClusterState, counts: Mapping[RequestClass, PromptCounts], fixed: Mapping[ModelId, Thresholds]
) -> list[tuple[RequestClass, Thresholds]]:
    """Return the classes with their thresholds in use, divided ones first."""
    divided = {cls: each for cls, each in state.clusters.found.items() if cls.model not in fixed}
    others = [cls for cls in counts if cls not in divided and cls.model not in fixed]
    return [*divided.items(), *((cls, ()) for cls in others)]


def _kept(
    cls: RequestClass,
    standing: Thresholds,
    lengths: PromptLengths,
    doubted_ns: Mapping[tuple[RequestClass, int], int],
    now_ns: int,
) -> tuple[Thresholds, dict[tuple[RequestClass, int], int]]:
    """Return the thresholds that stay, and since when each of them has been in doubt."""
    kept: list[int] = []
    doubts: dict[tuple[RequestClass, int], int] = {}
    for each in standing:
        if is_worth_keeping(lengths, each, standing):
            kept.append(each)
        elif now_ns - (since_ns := doubted_ns.get((cls, each), now_ns)) < HOLD_NS:
            kept.append(each)
            doubts[cls, each] = since_ns
    return tuple(kept), doubts


def _lengths(
    cls: RequestClass, standing: Thresholds, counts: PromptCounts | None, estimator: EstimatorState
) -> PromptLengths | None:
    """Return what a class is judged by; None if it need not be, or cannot be now."""
    if counts is None or counts.weights.sum() < REQUESTS_MIN:
        return None
    if not standing and not has_valley(counts.weights):
        return None
    entries = [entry for (each, _), entry in estimator.times.entries.items() if undivided(each) == cls]
    if not entries:
        return None
    most = max((entry.posterior for entry in entries), key=lambda posterior: posterior.answers)
    per_kind = [_service_s(entry) for entry in entries if entry.posterior is most]
    return PromptLengths(counts.weights, np.mean(per_kind, axis=0))


@lru_cache(maxsize=256)
def _service_s(entry: ClassEntry) -> FloatArray:
    """Return the service time of a request by the bin of its prompt, with usual answers of the class."""
    octaves = LENGTH_EDGES[8::OCTAVE]
    times_s = [
        steady_state(
            entry.profile, replace(entry.posterior.workload, prompt_tokens=float(tokens), prompt_var=0.0)
        ).request_s
        for tokens in octaves
    ]
    middle = np.log(np.add(LENGTH_EDGES[:-1], 1.0)) / 2 + np.log(LENGTH_EDGES[1:]) / 2
    return np.asarray(np.exp(np.interp(middle, np.log(octaves), np.log(times_s))), dtype=np.float64)


def _read(
    before: Mapping[RequestClass, PromptCounts], view: ClusterView, now_ns: int
) -> Mapping[RequestClass, PromptCounts]:
    """Return the counts after a view; those of a class that has not come for `HOLD_NS` are forgotten."""
    after = {cls: known for cls, known in before.items() if now_ns - known.at_ns < HOLD_NS}
    for each in view.classes:
        if not each.cls.late and each.prompts:  # a late request was counted in its class before
            cls = undivided(each.cls)
            after[cls] = _counted(after.get(cls), each, now_ns)
    return after


def _counted(known: PromptCounts | None, view: ClassView, now_ns: int) -> PromptCounts:
    if known is None:
        known = PromptCounts({}, np.zeros(LENGTH_BINS), now_ns)
    last = known.seen.get(view.cls, _NOTHING)
    new = np.subtract(view.prompts, last, dtype=np.float64)
    if (new < 0).any():  # the store was emptied
        new = np.asarray(view.prompts, dtype=np.float64)
    came = new.sum()
    if not came:
        return known
    weights = math.exp(-came / WINDOW) * known.weights + new * min(1.0, WINDOW / came)
    return PromptCounts({**known.seen, view.cls: view.prompts}, weights, now_ns)

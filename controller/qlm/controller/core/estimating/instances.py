"""Per-instance history of the estimator: speed corrections, KV cache readings, and model loads."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final

from qlm.controller.core.history.speeds import Speeds, speeds_of
from qlm.domain.fleet import EngineState, InstanceStatus, ServedWork
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.operations import SwapTier
from qlm.domain.view import ClusterView
from qlm.rct_estimator.correction import PRIOR_LOG_SD, Correction
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.served_work import served_work_s
from qlm.rct_estimator.workload import Workload

BUSY_MIN_S: Final = 5.0
"""Least busy time of a comparison with the profile, seconds: less is not representative."""

BUSY_MAX_S: Final = 30.0
"""Longest busy time of a comparison, seconds. On simulated engines whose memory bounds the batch, comparisons
of 5 s are 5 to 7 % off and each compensates the one before: over 40 s the error is 1.2 %."""

BATCH_MIN: Final = 2.0
"""Least mean batch of a comparison: below it, most of the time is spent outside the engine."""

ENDED_MIN: Final = 4
"""Least number of ended answers of a comparison: with fewer, its prompts are not those that ran."""

OUTPUT_TOKENS_MIN: Final = 100
"""Least output tokens of a comparison."""

ANSWER_KEEP: Final = 1 - 1 / 2000
"""Factor by which each answer reduces the weight of earlier KV readings: as length counts are forgotten."""

REPEATS_HORIZON_S: Final = 300.0
"""Busy time after which recomputed prompts weigh 1/e, seconds: the same horizon as for arrivals."""

Profiles = Mapping[tuple[ModelId, str], Profile]
"""By model and kind of accelerator."""


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """A model load in progress, first seen at `since_ns`, from the tier that its engine was in."""

    model: ModelId
    since_ns: int
    tier: SwapTier


@dataclass(frozen=True, slots=True)
class KvReadings:
    """KV cache occupancy of running requests: sums over readings with exponential forgetting.

    Attributes:
        kv_tokens: Tokens in the cache.
        requests: Running requests.
        answers: Answers that ended between readings. A request is read repeatedly while it runs.
    """

    kv_tokens: float = 0.0
    requests: float = 0.0
    answers: float = 0.0

    def read(self, status: InstanceStatus, answers: int) -> "KvReadings":
        """Add a reading; without running requests or a KV ledger, return `self`."""
        if not (status.running and status.kv_used_tokens):
            return self
        keep = ANSWER_KEEP**answers
        return KvReadings(
            keep * self.kv_tokens + status.kv_used_tokens,
            keep * self.requests + status.running,
            keep * self.answers + answers,
        )


@dataclass(frozen=True, slots=True)
class KvCosts:
    """KV cache cost of ended requests, O (p + O / 2) each: sums with exponential forgetting.

    Attributes:
        answers: Number of requests.
        token_steps: Sum of the costs.
        squares: Sum of the squared costs.
    """

    answers: float = 0.0
    token_steps: float = 0.0
    squares: float = 0.0

    def after(self, work: ServedWork) -> "KvCosts":
        """Add the requests that ended in an interval; without reported costs, return `self`."""
        if not work.token_steps:
            return self
        keep = ANSWER_KEEP**work.ended
        return KvCosts(
            keep * self.answers + work.ended,
            keep * self.token_steps + work.token_steps,
            keep * self.squares + work.token_step_squares,
        )


@dataclass(frozen=True, slots=True)
class Repeats:
    """Prompts computed again after preemptions: sums with exponential forgetting.

    Attributes:
        tokens: Tokens of these prompts, with earlier output.
        busy_s: Observed busy time.
    """

    tokens: float = 0.0
    busy_s: float = 0.0

    def after(self, work: ServedWork) -> "Repeats":
        """Add an interval."""
        keep = math.exp(-work.busy_s / REPEATS_HORIZON_S)
        return Repeats(keep * self.tokens + work.repeated_tokens, keep * self.busy_s + work.busy_s)


@dataclass(frozen=True, slots=True, eq=False)
class InstanceHistory:
    """History of one instance.

    Attributes:
        since: Its report at the start of the present comparison interval.
        corrections: Speed correction of each model.
        kv_readings: KV cache occupancy of running requests of each model, read once per interval.
        kv_costs: KV cache cost of ended requests of each model.
        repeats: Recomputed prompts of each model.
        asleep: Sleeping models at its last report.
        loading: The model load in progress, if any.
    """

    since: InstanceStatus
    corrections: Mapping[ModelId, Correction] = field(default_factory=dict)
    kv_readings: Mapping[ModelId, KvReadings] = field(default_factory=dict)
    kv_costs: Mapping[ModelId, KvCosts] = field(default_factory=dict)
    repeats: Mapping[ModelId, Repeats] = field(default_factory=dict)
    asleep: Mapping[ModelId, SwapTier] = field(default_factory=dict)
    loading: ModelLoad | None = None


def update_histories(
    view: ClusterView,
    now_ns: int,
    profiles: Profiles,
    before: Mapping[InstanceId, InstanceHistory],
    mixed: Mapping[ModelId, Workload],
    speeds: Speeds,
) -> Mapping[InstanceId, InstanceHistory]:
    """Return the histories after a view; `before` itself if nothing changed.

    Args:
        view: The cluster.
        now_ns: Time of the view, nanoseconds since the epoch.
        profiles: Profiles by model and kind.
        before: The histories so far.
        mixed: Mixture of the classes of each model: the variation of its prompts.
        speeds: Speeds of instances that were seen earlier.
    """
    after = {
        s.id: _updated(s, now_ns, profiles, before.get(s.id) or _begun(s, speeds), mixed)
        for s in view.instances
    }
    same = len(after) == len(before) and all(before.get(id) is known for id, known in after.items())
    return before if same else after


def sleeping_tiers(status: InstanceStatus) -> dict[ModelId, SwapTier]:
    """Return the models that sleep on an instance, least recently used first."""
    return {model: state.tier for model, state in status.engines if state.sleeps}


def _begun(status: InstanceStatus, speeds: Speeds) -> InstanceHistory:
    return InstanceHistory(since=status, corrections=speeds_of(status, speeds))


def _updated(
    status: InstanceStatus,
    now_ns: int,
    profiles: Profiles,
    known: InstanceHistory,
    mixed: Mapping[ModelId, Workload],
) -> InstanceHistory:
    loading = _loading(status, now_ns, known)
    if loading != known.loading:
        known = replace(known, loading=loading)
    asleep = sleeping_tiers(status)
    if asleep != known.asleep:
        known = replace(known, asleep=asleep)
    return _compared(status, profiles, known, mixed)


def _loading(status: InstanceStatus, now_ns: int, known: InstanceHistory) -> ModelLoad | None:
    starting = [model for model, state in status.engines if state is EngineState.STARTING]
    if status.active_model is not None or len(starting) != 1:
        return None
    (model,) = starting
    if known.loading is not None and known.loading.model == model:
        return known.loading
    return ModelLoad(model, now_ns, known.asleep.get(model, SwapTier.COLD))


def _compared(
    status: InstanceStatus, profiles: Profiles, known: InstanceHistory, mixed: Mapping[ModelId, Workload]
) -> InstanceHistory:
    """Compare the work since `known.since` with the profile, once there is enough of it."""
    model, since = status.active_model, known.since
    if since is status:
        return known
    now, before = status.work, since.work
    if since.holder != status.holder or since.active_model != model or model is None or _reset(now, before):
        return replace(known, since=status)
    corrections = known.corrections
    if now.ended - before.ended < ENDED_MIN:
        return known
    if now.busy_s - before.busy_s < _busy_enough_s(corrections.get(model)):
        return known
    work = _difference(now, before)
    profile = profiles.get((model, status.accelerator))
    if profile and work.request_s >= BATCH_MIN * work.busy_s and work.output_tokens >= OUTPUT_TOKENS_MIN:
        predicted_s = served_work_s(
            profile,
            work,
            started=work.ended + status.running + status.parked - since.running - since.parked,
            context_tokens=_context_tokens(since, status),
            prompt_cv2=mixed[model].prompt_cv2 if model in mixed else 0.0,
        )
        correction = corrections.get(model, Correction()).observed(predicted_s, work.busy_s)
        corrections = {**corrections, model: correction}
    return replace(
        known,
        since=status,
        corrections=corrections,
        kv_readings={
            **known.kv_readings,
            model: known.kv_readings.get(model, KvReadings()).read(status, work.ended),
        },
        kv_costs={**known.kv_costs, model: known.kv_costs.get(model, KvCosts()).after(work)},
        repeats={**known.repeats, model: known.repeats.get(model, Repeats()).after(work)},
    )


def _busy_enough_s(known: Correction | None) -> float:
    """Return the least busy time of the next comparison: longer the better the speed is known.

    Work that one interval counts too early (prompts submitted but not computed), the next one lacks.
    """
    return min(BUSY_MAX_S, BUSY_MIN_S * PRIOR_LOG_SD / math.sqrt(known.log_var)) if known else BUSY_MIN_S


def _reset(now: ServedWork, before: ServedWork) -> bool:
    """Return whether the sums were reset between two reports."""
    return now.busy_s < before.busy_s or now.output_tokens < before.output_tokens or now.ended < before.ended


def _difference(now: ServedWork, before: ServedWork) -> ServedWork:
    """Return the work between two reports."""
    done = {each.name: getattr(now, each.name) - getattr(before, each.name) for each in fields(ServedWork)}
    return ServedWork(**{name: max(0, value) for name, value in done.items()})


def _context_tokens(*readings: InstanceStatus) -> float | None:
    """Return the mean KV tokens of a running request over the given readings; None if unknown."""
    contexts = [s.kv_used_tokens / s.running for s in readings if s.running and s.kv_used_tokens]
    return sum(contexts) / len(contexts) if contexts else None


def pooled_corrections(
    view: ClusterView, histories: Mapping[InstanceId, InstanceHistory]
) -> dict[tuple[ModelId, str], Correction]:
    """Return the common correction of the live instances of each kind, by model: the error of the profile.

    It is the mean of their log ratios, weighted by the observations behind each.
    """
    weights: defaultdict[tuple[ModelId, str], float] = defaultdict(float)
    sums: defaultdict[tuple[ModelId, str], float] = defaultdict(float)
    for status in view.instances:
        for model, correction in histories[status.id].corrections.items():
            weight = 1 / correction.log_var - 1 / PRIOR_LOG_SD**2
            if weight > 0:
                weights[model, status.accelerator] += weight
                sums[model, status.accelerator] += weight * correction.log_ratio
    return {
        key: Correction(sums[key] / weight, 1 / (weight + 1 / PRIOR_LOG_SD**2))
        for key, weight in weights.items()
    }

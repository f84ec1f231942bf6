"""What is known of each instance: how fast it really is, and since when it has been loading a model."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final

from qlm.domain.fleet import EngineState, InstanceStatus, ServedWork
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.view import ClusterView
from qlm.rct_estimator.correction import PRIOR_LOG_SD, Correction
from qlm.rct_estimator.profile import Profile
from qlm.rct_estimator.served_work import served_work_s

BUSY_MIN_S: Final = 5.0
"""Work of fewer busy seconds is not compared with the profile: its batch and lengths say too little."""

BUSY_MAX_S: Final = 30.0
"""Work is watched for so many busy seconds at most. On simulated engines whose memory bounds the batch,
single comparisons of 5 s are 5 to 7 % off, and each makes up for the one before: over 40 s it is 1.2 %."""

BATCH_MIN: Final = 2.0
"""Work of a smaller mean batch is not compared: most of the time is then spent beside the engine."""

ENDED_MIN: Final = 4
"""Work in which fewer answers ended is watched on: its prompts are not those of what ran."""

OUTPUT_TOKENS_MIN: Final = 100
"""Work of fewer output tokens is not compared."""

HELD_KEEP: Final = 1 - 1 / 2000
"""What each answer leaves of the weight of earlier readings of the KV cache: about as lengths are counted."""

REPEATS_HORIZON_S: Final = 300.0
"""Prompts that were computed again so many busy seconds ago count 1/e of those now: as arrivals do."""

Profiles = Mapping[tuple[ModelId, str], Profile]
"""By model and kind of accelerator."""


@dataclass(frozen=True, slots=True)
class Loading:
    """A model on its way, first seen so at `since_ns`; `warm` if its weights were in host memory."""

    model: ModelId
    since_ns: int
    warm: bool


@dataclass(frozen=True, slots=True)
class HeldTokens:
    """What running requests hold of the KV cache: sums over readings, older ones weigh less.

    Attributes:
        kv_tokens: Tokens in the cache.
        requests: Running requests.
        answers: Answers that ended meanwhile: a request is read again and again while it runs.
    """

    kv_tokens: float = 0.0
    requests: float = 0.0
    answers: float = 0.0

    def read(self, status: InstanceStatus, answers: int) -> "HeldTokens":
        """Add a reading; one without running requests or without a ledger says nothing."""
        if not (status.running and status.kv_used_tokens):
            return self
        keep = HELD_KEEP**answers
        return HeldTokens(
            keep * self.kv_tokens + status.kv_used_tokens,
            keep * self.requests + status.running,
            keep * self.answers + answers,
        )


@dataclass(frozen=True, slots=True)
class Costs:
    """What ended requests cost the KV cache, O (p + O / 2) each: sums, older ones weigh less.

    Attributes:
        answers: How many.
        token_steps: Sum of these.
        squares: Sum of their squares.
    """

    answers: float = 0.0
    token_steps: float = 0.0
    squares: float = 0.0

    def after(self, work: ServedWork) -> "Costs":
        """Add what ended in an interval; agents that do not tell what it cost say nothing."""
        if not work.token_steps:
            return self
        keep = HELD_KEEP**work.ended
        return Costs(
            keep * self.answers + work.ended,
            keep * self.token_steps + work.token_steps,
            keep * self.squares + work.token_step_squares,
        )


@dataclass(frozen=True, slots=True)
class Repeats:
    """Prompts that were computed again after an eviction, older ones weigh less.

    Attributes:
        tokens: Of these prompts, earlier output included.
        busy_s: Busy time in which they were computed.
    """

    tokens: float = 0.0
    busy_s: float = 0.0

    def after(self, work: ServedWork) -> "Repeats":
        """Add what was done in an interval."""
        keep = math.exp(-work.busy_s / REPEATS_HORIZON_S)
        return Repeats(keep * self.tokens + work.repeated_tokens, keep * self.busy_s + work.busy_s)


@dataclass(frozen=True, slots=True, eq=False)
class InstanceMemory:
    """What is remembered of an instance.

    Attributes:
        since: What it said when the work that is being watched began.
        corrections: How much slower than its profile it serves each model.
        held: What running requests of each model held, as read once for each stretch of watched work.
        costs: What ended requests of each model cost.
        repeats: Prompts of each model that it computed again.
        asleep: Models that were in host memory when it was last heard of.
        loading: The model it is bringing up, if any.
    """

    since: InstanceStatus
    corrections: Mapping[ModelId, Correction] = field(default_factory=dict)
    held: Mapping[ModelId, HeldTokens] = field(default_factory=dict)
    costs: Mapping[ModelId, Costs] = field(default_factory=dict)
    repeats: Mapping[ModelId, Repeats] = field(default_factory=dict)
    asleep: frozenset[ModelId] = frozenset()
    loading: Loading | None = None


def remembered(
    view: ClusterView, now_ns: int, profiles: Profiles, before: Mapping[InstanceId, InstanceMemory]
) -> Mapping[InstanceId, InstanceMemory]:
    """Learn from what the live instances say; `before` itself if there was nothing to learn."""
    after = {s.id: _remembered(s, now_ns, profiles, before.get(s.id)) for s in view.instances}
    same = len(after) == len(before) and all(before.get(id) is known for id, known in after.items())
    return before if same else after


def _remembered(
    status: InstanceStatus, now_ns: int, profiles: Profiles, known: InstanceMemory | None
) -> InstanceMemory:
    if known is None:
        known = InstanceMemory(since=status)
    loading = _loading(status, now_ns, known)
    if loading != known.loading:
        known = replace(known, loading=loading)
    asleep = frozenset(model for model, state in status.engines if state.sleeps)
    if asleep != known.asleep:
        known = replace(known, asleep=asleep)
    return _watched(status, profiles, known)


def _loading(status: InstanceStatus, now_ns: int, known: InstanceMemory) -> Loading | None:
    starting = [model for model, state in status.engines if state is EngineState.STARTING]
    if status.active_model is not None or len(starting) != 1:
        return None
    (model,) = starting
    if known.loading is not None and known.loading.model == model:
        return known.loading
    return Loading(model, now_ns, model in known.asleep)


def _watched(status: InstanceStatus, profiles: Profiles, known: InstanceMemory) -> InstanceMemory:
    """Compare the work since `known.since` with the profile once there is enough of it."""
    model, since = status.active_model, known.since
    work = _difference(status.work, since.work)
    if since.holder != status.holder or since.active_model != model or model is None or work is None:
        return known if since is status else replace(known, since=status)
    corrections = known.corrections
    if work.busy_s < _busy_enough_s(corrections.get(model)) or work.ended < ENDED_MIN:
        return known
    profile = profiles.get((model, status.accelerator))
    if profile and work.request_s >= BATCH_MIN * work.busy_s and work.output_tokens >= OUTPUT_TOKENS_MIN:
        predicted_s = served_work_s(
            profile,
            work,
            started=work.ended + status.running + status.parked - since.running - since.parked,
            context_tokens=_context_tokens(since, status),
        )
        correction = corrections.get(model, Correction()).observed(predicted_s, work.busy_s)
        corrections = {**corrections, model: correction}
    return replace(
        known,
        since=status,
        corrections=corrections,
        held={**known.held, model: known.held.get(model, HeldTokens()).read(status, work.ended)},
        costs={**known.costs, model: known.costs.get(model, Costs()).after(work)},
        repeats={**known.repeats, model: known.repeats.get(model, Repeats()).after(work)},
    )


def _busy_enough_s(known: Correction | None) -> float:
    """How long work is watched: the longer the more is known.

    What an interval tells too much of its work (prompts given and not computed yet), the next one tells too
    little.
    """
    return min(BUSY_MAX_S, BUSY_MIN_S * PRIOR_LOG_SD / math.sqrt(known.log_var)) if known else BUSY_MIN_S


def _difference(now: ServedWork, then: ServedWork) -> ServedWork | None:
    """What was done in between; None if the sums began anew."""
    if now.busy_s < then.busy_s or now.output_tokens < then.output_tokens or now.ended < then.ended:
        return None
    done = {each.name: getattr(now, each.name) - getattr(then, each.name) for each in fields(ServedWork)}
    return ServedWork(**{name: max(0, value) for name, value in done.items()})


def _context_tokens(*readings: InstanceStatus) -> float | None:
    """Mean KV tokens of a running request, as far as the two ends of the interval tell."""
    contexts = [s.kv_used_tokens / s.running for s in readings if s.running and s.kv_used_tokens]
    return sum(contexts) / len(contexts) if contexts else None


def pooled_corrections(
    view: ClusterView, memory: Mapping[InstanceId, InstanceMemory]
) -> dict[tuple[ModelId, str], Correction]:
    """What the live instances of a kind have in common, for each model that any of them was watched with.

    The mean of their logarithms, each weighted by the observations behind it: what a profile is off by
    shows on all its instances.
    """
    weights: defaultdict[tuple[ModelId, str], float] = defaultdict(float)
    sums: defaultdict[tuple[ModelId, str], float] = defaultdict(float)
    for status in view.instances:
        for model, correction in memory[status.id].corrections.items():
            weight = 1 / correction.log_var - 1 / PRIOR_LOG_SD**2
            if weight > 0:
                weights[model, status.accelerator] += weight
                sums[model, status.accelerator] += weight * correction.log_ratio
    return {
        key: Correction(sums[key] / weight, 1 / (weight + 1 / PRIOR_LOG_SD**2))
        for key, weight in weights.items()
    }

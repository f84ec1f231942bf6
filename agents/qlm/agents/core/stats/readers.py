"""Largest batch that keeps up with the readers in it, from the engine's profile and the answers seen.

The bound is that of `qlm.rct_estimator.readers`, as the controller's estimates have it. The agent learns the
mean prompt and answer of all requests that end on a model, whatever their class: they share the batch.
"""

from collections.abc import Mapping
from typing import Final

from qlm.domain.ids import ModelId
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.readers import reader_bound
from qlm.rct_estimator.throughput import full_batch
from qlm.rct_estimator.workload import Workload

PRIOR_TOKENS: Final = 256.0
"""Mean prompt and mean answer before any was seen; answers are assumed exponential."""

_PRIOR_COUNT: Final = 4
"""Weight of the prior, in answers."""

_WEIGHT_MIN: Final = 1 / 256
"""Minimum weight of the newest answer."""

_STALE_SHARE: Final = 0.25
"""A bound is computed again when this share of the answers before were seen since,"""

_STALE_MAX: Final = 64
"""or this many, whichever are fewer: it takes about half a millisecond."""


class _Seen:
    """Moments of the requests that ended on one model; the full batch and the bounds that follow, by pace."""

    __slots__ = ("answer", "bounds", "computed_at", "count", "full", "prompt", "square")

    def __init__(self) -> None:
        self.count = 0
        self.prompt = self.answer = PRIOR_TOKENS
        self.square = 2 * PRIOR_TOKENS**2
        self.bounds: dict[float, int | None] = {}
        self.full = 0
        self.computed_at = 0

    def add(self, prompt_tokens: int, output_tokens: int) -> None:
        self.count += 1
        weight = max(_WEIGHT_MIN, 1 / (self.count + _PRIOR_COUNT))
        self.prompt += weight * (prompt_tokens - self.prompt)
        self.answer += weight * (output_tokens - self.answer)
        self.square += weight * (output_tokens**2 - self.square)

    def workload(self) -> Workload:
        answer = max(1.0, self.answer)
        return Workload(prompt_tokens=self.prompt, output=Normal(answer, max(0.0, self.square - answer**2)))


class ReaderBounds:
    """Bounds of one agent.

    Args:
        profiles: Profiles of the models; none is bounded without one.
    """

    def __init__(self, profiles: Mapping[ModelId, Profile]) -> None:
        self._profiles = profiles
        self._seen: dict[ModelId, _Seen] = {}

    def ended(self, model: ModelId, prompt_tokens: int, output_tokens: int) -> None:
        """Note a finished answer."""
        if model in self._profiles:
            self._seen.setdefault(model, _Seen()).add(prompt_tokens, output_tokens)

    def limit(self, model: ModelId, readers: Mapping[float, int], seqs_max: int) -> int | None:
        """Return the batch that keeps up with most readers; None for a full one.

        A batch for readers of pace r holds B(r) requests, and faster readers fall behind. So r is the pace
        with the largest B(r) n(r) / n, where n(r) of the n readers read no faster. A fast reader on a slow
        instance would else keep the places of several slow ones empty.

        Args:
            model: The awake model.
            readers: Number of readers in the batch, by pace.
            seqs_max: Batch slots.
        """
        profile = self._profiles.get(model)
        if profile is None:
            return None
        best, most, kept = None, 0, sum(readers.values())
        for pace in sorted(readers, reverse=True):
            bound = self._bound(model, profile, pace)
            size = min(seqs_max, self._seen[model].full) if bound is None else bound
            if size * kept > most:
                best, most = bound, size * kept
            kept -= readers[pace]
        return best

    def _bound(self, model: ModelId, profile: Profile, pace: float) -> int | None:
        seen = self._seen.setdefault(model, _Seen())
        if seen.count - seen.computed_at > min(_STALE_MAX, _STALE_SHARE * seen.computed_at):
            seen.bounds.clear()
            seen.computed_at = seen.count
        if not seen.bounds:
            seen.full = int(full_batch(profile, seen.workload()))
        if pace not in seen.bounds:
            seen.bounds[pace] = reader_bound(profile, seen.workload(), pace)
        return seen.bounds[pace]

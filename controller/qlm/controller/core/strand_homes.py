"""Homes of strands: the instance where the earlier calls of a strand's tasks left their blocks.

A home is a preference with a price: a call costs more elsewhere, by the time to compute what the home's cache
holds. So a strand's groups go elsewhere as soon as their home has that much more to do.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from qlm.controller.core.estimating.service_times import ClassEntry
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.formats.strands import STRANDS_MAX, rank, strand_of
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.view import ClusterView
from qlm.rct_estimator.recompute import recompute_token_s

CACHED_PRIOR: Final = 0.8
"""Assumed share of a call's prompt that its task's earlier calls had, before caches report theirs."""

PRIOR_PROMPTS: Final = 20.0
"""Weight of that assumption, in prompts."""

AWAY_WEIGHT: Final = 3.0
"""Price of a prompt that is computed away from home, in multiples of its time: it stalls the batch there, and
what it adds is missing at home for the next call (docs/decisions/0042)."""


@dataclass(frozen=True, slots=True, eq=False)
class StrandHomes:
    """Homes of the strands of a view.

    Attributes:
        of: Home of each strand of each model.
        cached: Share of the prompts of a model's strands that the caches of their homes hold.
    """

    of: Mapping[tuple[ModelId, int], InstanceId] = field(default_factory=dict)
    cached: Mapping[ModelId, float] = field(default_factory=dict)

    def home(self, cls: RequestClass) -> InstanceId | None:
        """Return the home of a class's strand; None without one."""
        number = strand_of(cls) if self.of else None
        return None if number is None else self.of.get((cls.model, number))

    def homes(self) -> frozenset[InstanceId]:
        """Return all instances that are homes."""
        return frozenset(self.of.values())

    def away_s(self, cls: RequestClass, entry: ClassEntry, instance: InstanceId | None) -> float:
        """Return the price of a call of a class on an instance beyond that at home, seconds."""
        home = self.home(cls)
        if home is None or home == instance:
            return 0.0
        tokens = self.cached.get(cls.model, CACHED_PRIOR) * entry.posterior.mean_prompt_tokens
        return AWAY_WEIGHT * tokens * recompute_token_s(entry.profile)


NO_HOMES: Final = StrandHomes()
"""Of a view without strands."""


def strand_homes(view: ClusterView) -> StrandHomes:
    """Return the homes of the strands that have requests, by the view alone.

    They follow from the names of the instances that have the model: every controller finds the same,
    also after a restart, and most stay where an instance comes or goes.
    """
    wanted: dict[ModelId, set[int]] = {}
    for each in view.classes:
        number = strand_of(each.cls)
        if number is not None:
            wanted.setdefault(each.cls.model, set()).add(number)
    if not wanted:
        return NO_HOMES
    of: dict[tuple[ModelId, int], InstanceId] = {}
    for model in sorted(wanted):
        serving = [status.id for status in _serving(view, model)]
        of |= {(model, number): home for number, home in _spread(serving) if serving}
    return StrandHomes(of, {model: _cached(view, model, of) for model in wanted})


def strand_counts(view: ClusterView, models: Collection[ModelId]) -> dict[ModelId, int]:
    """Return the strands of each model that two or more instances have: one for each, up to a limit."""
    counts = {model: sum(1 for _ in _serving(view, model)) for model in sorted(models)}
    return {model: min(STRANDS_MAX, count) for model, count in counts.items() if count > 1}


def _serving(view: ClusterView, model: ModelId) -> Iterator[InstanceStatus]:
    """Yield the instances that have a model awake, or are starting it with none awake, and may serve it.

    By the placement, one that has it awake may have to leave it.
    """
    for status in view.instances:
        awake = status.active_model
        starting = awake is None and dict(status.engines).get(model) is EngineState.STARTING
        if not status.draining and model in status.models and (awake == model or starting):
            yield status


def _spread(instances: Collection[InstanceId]) -> Iterator[tuple[int, InstanceId]]:
    """Yield strands with their homes, as many on each instance as on any other, one more at most."""
    given: Counter[InstanceId] = Counter()
    for number in range(STRANDS_MAX if instances else 0):
        least = min(given[each] for each in instances)
        free = [each for each in instances if given[each] == least]
        home = max(free, key=partial(rank, place=str(number)))
        given[home] += 1
        yield number, home


def _cached(view: ClusterView, model: ModelId, of: Mapping[tuple[ModelId, int], InstanceId]) -> float:
    prompts = tokens = cached = 0.0
    for status in view.instances:
        for each in status.prompts:
            number = strand_of(each.cls) if each.cls.model == model else None
            if number is not None and of.get((model, number)) == status.id:
                prompts += each.prompts
                tokens += each.prompt_tokens
                cached += each.cached_tokens
    share = min(1.0, cached / tokens) if tokens else 0.0
    return (PRIOR_PROMPTS * CACHED_PRIOR + prompts * share) / (PRIOR_PROMPTS + prompts)

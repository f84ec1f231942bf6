"""Which models stay in host memory, and in which tier one sleeps: by what that saves and what it holds.

A model that sleeps warm holds its weights and its process, one that sleeps without weights only its process.
Besides, weights files of models that do not sleep warm may be held ahead of their turn (`warming`). The
budget is one for all of them. vLLM (0.32) ignores a second sleep of a sleeping engine, so that a model which
sleeps can make room only by the end of its process.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from qlm.domain.fleet import EngineState
from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
from qlm.rct_estimator.profile import Profile

ENGINE_PROCESS_BYTES: Final = 2 * 2**30
"""Host memory of an engine process without weights, bytes: 1.4 to 1.6 GiB were measured of vLLM 0.32 on a CPU
(proportional share, four processes); one with CUDA maps more."""

ALL_TIERS: Final = frozenset(SwapTier)

ASLEEP_AS: Final = {SwapTier.WARM: EngineState.ASLEEP, SwapTier.RELOAD: EngineState.UNLOADED}
"""State of an engine by the tier in which it sleeps."""

ASLEEP_IN: Final = {state: tier for tier, state in ASLEEP_AS.items()}
"""The tier in which an engine sleeps by its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapCost:
    """What one model holds while it sleeps, and how long it takes to serve again, by tier.

    Attributes:
        weights_bytes: Size of its weights.
        process_bytes: Host memory of its process without them, its KV cache in host memory included.
        warm_s: From host memory to serving.
        reload_s: From storage to serving, in a live process.
        cold_s: From nothing to serving.
    """

    weights_bytes: int
    process_bytes: int = 0
    warm_s: float = 0.0
    reload_s: float = 1.0
    cold_s: float = 1.0

    @classmethod
    def of(cls, profile: Profile, *, host_kv_bytes: int = 0) -> "SwapCost":
        """Read it from a profile; `host_kv_bytes` is the KV cache in host memory of one engine."""
        return cls(
            weights_bytes=profile.weights_bytes,
            process_bytes=ENGINE_PROCESS_BYTES + host_kv_bytes,
            warm_s=profile.swap_warm_s,
            reload_s=profile.swap_reload_s,
            cold_s=profile.swap_cold_s,
        )

    def holds_bytes(self, tier: SwapTier) -> int:
        """Host memory of the sleeping model."""
        if tier is SwapTier.COLD:
            return 0
        return self.process_bytes + (self.weights_bytes if tier is SwapTier.WARM else 0)

    def takes_s(self, tier: SwapTier) -> float:
        """Seconds until it serves."""
        return {SwapTier.WARM: self.warm_s, SwapTier.RELOAD: self.reload_s, SwapTier.COLD: self.cold_s}[tier]

    def saves_s(self, tier: SwapTier) -> float:
        """Seconds by which it serves sooner than from nothing."""
        return max(0.0, self.cold_s - self.takes_s(tier))

    @property
    def ahead_saves_s(self) -> float:
        """Seconds by which a reload is quicker once the weights file is in host memory."""
        return max(0.0, self.reload_s - self.warm_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What is in host memory.

    Attributes:
        asleep: Sleeping models with their tier, the least recently used first.
        ahead: Models whose weights files are held ahead of their turn, the oldest first.
    """

    asleep: Mapping[ModelId, SwapTier]
    ahead: tuple[ModelId, ...] = ()

    def bytes(self, costs: Mapping[ModelId, SwapCost]) -> int:
        """Host memory of all of it."""
        sleeping = sum(costs[model].holds_bytes(tier) for model, tier in self.asleep.items())
        return sleeping + sum(costs[model].weights_bytes for model in self.ahead)


@dataclass(frozen=True, slots=True)
class Bedding:
    """What becomes of a model that is to sleep, and of what is in host memory already.

    Attributes:
        tier: In which it sleeps; its engine is stopped if that is COLD.
        stop: Sleeping models whose engines are stopped first, in order.
        drop: Models whose weights files, held ahead, are let go first.
    """

    tier: SwapTier
    stop: tuple[ModelId, ...] = ()
    drop: tuple[ModelId, ...] = ()


def bed(
    model: ModelId,
    held: Holding,
    costs: Mapping[ModelId, SwapCost],
    host_memory_bytes: int,
    tiers: Collection[SwapTier] = ALL_TIERS,
    coming: Sequence[ModelId] = (),
) -> Bedding:
    """Choose the tier that saves most, after what has to make room for it.

    Room is made by files held ahead, then by the least recently used models. What one of them is worth
    halves with each model used since, so that among equals the last one used is always kept. A model that
    has a turn is worth all that it saves, and makes room after those that have none, the last turn first.

    Args:
        model: The awake model that is to sleep.
        held: What is in host memory.
        costs: Of each model.
        host_memory_bytes: Memory for all of it together.
        tiers: What may be used; COLD always may.
        coming: Models that have a turn, in order, as far as that is known. The first one is woken next: it
            makes no room, and needs what it holds until then.
    """
    best, best_s = Bedding(SwapTier.COLD), 0.0
    for tier in (SwapTier.WARM, SwapTier.RELOAD):
        if tier not in tiers:
            continue
        room_bytes = host_memory_bytes - costs[model].holds_bytes(tier)
        bedding = _making_room(held, costs, room_bytes, tier, coming)
        if bedding is None:
            continue
        gain_s = costs[model].saves_s(tier) - _worth_s(bedding, held, costs, coming)
        if gain_s > best_s:
            best, best_s = bedding, gain_s
    return best


def _making_room(
    held: Holding,
    costs: Mapping[ModelId, SwapCost],
    room_bytes: int,
    tier: SwapTier,
    coming: Sequence[ModelId],
) -> Bedding | None:
    """Let go of no more than must be until the rest fits; None if it does not."""
    used = held.bytes(costs)
    drop, stop = [], []
    for model in _first_to_go(held.ahead, coming):
        if used > room_bytes:
            drop.append(model)
            used -= costs[model].weights_bytes
    for model in _first_to_go(held.asleep, coming):
        if used > room_bytes:
            stop.append(model)
            used -= costs[model].holds_bytes(held.asleep[model])
    return Bedding(tier, tuple(stop), tuple(drop)) if used <= room_bytes else None


def _first_to_go(models: Iterable[ModelId], coming: Sequence[ModelId]) -> list[ModelId]:
    """Put those without a turn first, as they stand, then the others from the last turn on."""
    turns = {model: turn for turn, model in enumerate(coming)}
    others = [model for model in models if turns.get(model) != 0]
    return sorted(others, key=lambda model: -turns.get(model, len(turns)))


def _worth_s(
    bedding: Bedding, held: Holding, costs: Mapping[ModelId, SwapCost], coming: Sequence[ModelId]
) -> float:
    """Seconds that are lost with what makes room, as far as they are to be expected."""
    ages = dict(zip(reversed(tuple(held.asleep)), count(1), strict=False))
    stopped = sum(
        costs[model].saves_s(held.asleep[model]) * (1.0 if model in coming else 0.5 ** ages[model])
        for model in bedding.stop
    )
    dropped = sum(costs[model].ahead_saves_s * (1.0 if model in coming else 0.5) for model in bedding.drop)
    return stopped + dropped


class HostMemory:
    """The host memory of one instance: the books of those who move engines, real or simulated.

    Args:
        costs: Of each model the instance may serve.
        host_memory_bytes: For sleeping models and what is held ahead of their turn.
        tiers: In which models may sleep.
    """

    def __init__(
        self,
        costs: Mapping[ModelId, SwapCost],
        host_memory_bytes: int,
        tiers: Collection[SwapTier] = ALL_TIERS,
    ) -> None:
        self.costs: Final = costs
        self.host_memory_bytes: Final = host_memory_bytes
        self._tiers = frozenset(tiers)
        self._asleep: dict[ModelId, SwapTier] = {}
        self._ahead: dict[ModelId, None] = {}

    @property
    def held(self) -> Holding:
        """What is in it."""
        return Holding(asleep=dict(self._asleep), ahead=tuple(self._ahead))

    @property
    def ahead(self) -> Sequence[ModelId]:
        """Models whose weights files are held ahead of their turn."""
        return tuple(self._ahead)

    def bed(self, model: ModelId, coming: Sequence[ModelId] = ()) -> Bedding:
        """Decide what becomes of an awake model that is to sleep; nothing changes yet. See `bed`."""
        return bed(model, self.held, self.costs, self.host_memory_bytes, self._tiers, coming)

    def tier(self, model: ModelId) -> SwapTier:
        """From where a model that is not awake would come."""
        return self._asleep.get(model, SwapTier.COLD)

    def slept(self, model: ModelId, tier: SwapTier) -> None:
        """Note that a model has gone to sleep."""
        self.gone(model)
        if tier is not SwapTier.COLD:
            self._asleep[model] = tier

    def gone(self, model: ModelId) -> None:
        """Note that a model is awake or stopped: nothing of it is held here for its next turn."""
        self._asleep.pop(model, None)

    def has_room_ahead(self, model: ModelId) -> bool:
        """Whether the weights file of a model that does not sleep warm can be held, too."""
        if model in self._ahead or self._asleep.get(model) is SwapTier.WARM:
            return False
        return self.held.bytes(self.costs) + self.costs[model].weights_bytes <= self.host_memory_bytes

    def fetched(self, model: ModelId) -> None:
        """Note that the weights file of a model is held ahead of its turn."""
        self._ahead[model] = None

    def dropped(self, model: ModelId) -> None:
        """Note that it no longer is."""
        self._ahead.pop(model, None)

"""Fleets: kinds of instances, models with shipped profiles, and who serves what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final

from benchmarks.motion.generator.chance import Ranges, Rng, happens, pick, whole
from qlm.rct_estimator.profiles.builtin import builtin_profiles

Kind = tuple[str, int]
"""Accelerator and number of them."""

INSTANCES: Final[Ranges] = ((0.07, 1, 1), (0.63, 2, 4), (0.2, 5, 8), (0.1, 9, 16))
MODELS: Final[Ranges] = ((0.05, 1, 1), (0.65, 2, 8), (0.15, 9, 16), (0.1, 17, 40), (0.05, 41, 100))
KINDS_OF_A_FLEET: Final[Ranges] = ((0.45, 1, 1), (0.4, 2, 2), (0.15, 3, 4))

KINDS: Final[tuple[tuple[float, Kind], ...]] = (
    (0.38, ("A100", 1)),
    (0.25, ("H100", 1)),
    (0.17, ("A10", 1)),
    (0.06, ("A10", 2)),
    (0.06, ("A100", 2)),
    (0.05, ("H100", 2)),
    (0.02, ("A100", 4)),
    (0.01, ("H100", 4)),
)

HOST_MEMORY_GIB: Final = (48, 64, 128, 256, 512)

RESTRICTED: Final = 0.25
"""Share of fleets whose instances may each serve only some of the models."""

PER_INSTANCE_MAX: Final = 12
"""Most models per instance, as far as there may be more instances: with more, there is little but swaps."""

TWINS: Final = 0.3
"""Share of fleets in which models are equal twins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnInstance:
    """An instance with the models that it may serve, the first awake at the start."""

    id: str
    kind: Kind
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnFleet:
    """A fleet.

    Attributes:
        models: Profile by id.
        instances: All instances.
        host_memory_gib: Of each instance.
        twins: Equal models, which also get equal demand; empty for none.
    """

    models: Mapping[str, str]
    instances: tuple[DrawnInstance, ...]
    host_memory_gib: int
    twins: frozenset[str]


def draw_fleet(rng: Rng) -> DrawnFleet:
    """Draw a fleet in which each model has an instance, and each instance a model."""
    kinds, served = _kinds(rng), _served()
    count = whole(rng, MODELS)
    kinds = _enough(kinds, count)
    profiles = [_profile(rng, pick(rng, [(1.0, kind) for kind in kinds]), served) for _ in range(count)]
    twins = _twins(rng, profiles)
    usable = [kind for kind in kinds if set(served[kind]) & set(profiles)]
    kinds = [kind if kind in usable else pick(rng, [(1.0, each) for each in usable]) for kind in kinds]
    ids = [f"m{number:02d}-{profile}" for number, profile in enumerate(profiles)]
    models = dict(zip(ids, profiles, strict=True))
    return DrawnFleet(
        models=models,
        instances=_instances(rng, kinds, models, served),
        host_memory_gib=int(rng.choice(HOST_MEMORY_GIB)),
        twins=frozenset(ids[number] for number in twins),
    )


def _served() -> Mapping[Kind, tuple[str, ...]]:
    """Return the models that have a shipped profile, by kind."""
    found: dict[Kind, list[str]] = {}
    for profile in builtin_profiles():
        found.setdefault((profile.accelerator, profile.gpus), []).append(profile.model)
    return {kind: tuple(sorted(models)) for kind, models in found.items()}


def _kinds(rng: Rng) -> list[Kind]:
    """Draw the kind of each instance."""
    count = whole(rng, INSTANCES)
    different = [pick(rng, KINDS) for _ in range(min(count, whole(rng, KINDS_OF_A_FLEET)))]
    more = [different[int(rng.integers(len(different)))] for _ in range(count - len(different))]
    return sorted([*different, *more])


def _enough(kinds: Sequence[Kind], models: int) -> list[Kind]:
    """Repeat the kinds until there are instances enough for the models."""
    count = max(len(kinds), min(INSTANCES[-1][2], -(-models // PER_INSTANCE_MAX)))
    return sorted(islice(cycle(kinds), count))


def _profile(rng: Rng, kind: Kind, served: Mapping[Kind, Sequence[str]]) -> str:
    return pick(rng, [(1.0, model) for model in served[kind]])


def _twins(rng: Rng, profiles: list[str]) -> frozenset[int]:
    """Draw which models are twins of the first, and give them its profile: two, or all of them."""
    if len(profiles) < 2 or not happens(rng, TWINS):
        return frozenset()
    number = len(profiles) if happens(rng, 0.5) else 2
    profiles[:number] = [profiles[0]] * number
    return frozenset(range(number))


def _instances(
    rng: Rng, kinds: Sequence[Kind], models: Mapping[str, str], served: Mapping[Kind, Sequence[str]]
) -> tuple[DrawnInstance, ...]:
    able = [[id for id, profile in models.items() if profile in served[kind]] for kind in kinds]
    chosen = [set(each) for each in able]
    if happens(rng, RESTRICTED):
        chosen = [set(_some(rng, each)) for each in able]
        for id in models:
            if not any(id in each for each in chosen):
                chosen[pick(rng, [(1.0, at) for at, each in enumerate(able) if id in each])].add(id)
    return tuple(
        DrawnInstance(
            id=f"i{at:02d}-{kind[0].lower()}",
            kind=kind,
            models=tuple(str(id) for id in rng.permutation(sorted(chosen[at]))),
        )
        for at, kind in enumerate(kinds)
    )


def _some(rng: Rng, ids: Sequence[str]) -> list[str]:
    """Draw at least half of the models."""
    number = int(rng.integers((len(ids) + 1) // 2, len(ids), endpoint=True))
    return [str(id) for id in rng.choice(ids, number, replace=False)]

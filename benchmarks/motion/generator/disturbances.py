"""What a controller does not know: wrong profiles, history unlike the run, instances that leave."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.motion.generator.chance import Rng, happens, log_uniform, pick
from benchmarks.motion.generator.fleet import DrawnFleet

WRONG: Final = 0.4
"""Share of scenarios with wrong profiles."""

LEAVES: Final = 0.2
"""Share of scenarios of several instances in which one leaves and returns."""

SLOW: Final = 0.1
"""Share of scenarios in which one instance is slower than others of its kind."""

OFF_BY: Final = (1.2, 1.5)
"""Least and greatest factor of a wrong time, or of its inverse."""

HISTORY: Final = ((0.45, "none"), (0.3, "like"), (0.25, "unlike"))

HISTORY_ANSWERS: Final = (20, 300)
"""Answers of a model before the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """Error of profiles: true times over those of the profiles; of all models if none is named."""

    model: str | None
    accelerator: str
    iterations: float
    swaps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """An instance that leaves and returns; times as shares of the run."""

    instance: str
    at: float
    down: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Answers of a model before the run.

    Attributes:
        answers: Their number.
        factor: Their length over that of the run.
    """

    answers: int
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbances:
    """Disturbances of a scenario.

    Attributes:
        wrong: Errors of profiles.
        slow: An instance, and its times over those of others of its kind.
        absences: Instances that leave and return.
        history: Answers before the run, by model; empty for none.
    """

    wrong: tuple[Wrong, ...]
    slow: tuple[str, float] | None
    absences: tuple[Absence, ...]
    history: tuple[Past, ...]


def draw_disturbances(rng: Rng, fleet: DrawnFleet) -> Disturbances:
    """Draw the disturbances of a scenario."""
    ids = [each.id for each in fleet.instances]
    return Disturbances(
        wrong=_wrong(rng, fleet) if happens(rng, WRONG) else (),
        slow=(str(rng.choice(ids)), log_uniform(rng, *OFF_BY)) if happens(rng, SLOW) else None,
        absences=_absences(rng, ids) if len(ids) > 1 and happens(rng, LEAVES) else (),
        history=_history(rng, len(fleet.models)),
    )


def _wrong(rng: Rng, fleet: DrawnFleet) -> tuple[Wrong, ...]:
    """Draw an error for each model on each accelerator, or one for all models of an accelerator."""
    pairs = sorted({(model, each.kind[0]) for each in fleet.instances for model in each.models})
    if happens(rng, 0.5):
        kinds = sorted({kind for _model, kind in pairs})
        return tuple(_error(rng, None, kind) for kind in kinds)
    return tuple(_error(rng, model, kind) for model, kind in pairs)


def _error(rng: Rng, model: str | None, accelerator: str) -> Wrong:
    return Wrong(model=model, accelerator=accelerator, iterations=_factor(rng), swaps=_factor(rng))


def _factor(rng: Rng) -> float:
    factor = log_uniform(rng, *OFF_BY)
    return factor if happens(rng, 0.5) else 1 / factor


def _absences(rng: Rng, ids: Sequence[str]) -> tuple[Absence, ...]:
    return (Absence(instance=str(rng.choice(ids)), at=rng.uniform(0.1, 0.6), down=rng.uniform(0.03, 0.3)),)


def _history(rng: Rng, models: int) -> tuple[Past, ...]:
    """Draw the history of each model; unlike the run, lengths differ by up to three times."""
    kind = pick(rng, HISTORY)
    if kind == "none":
        return ()
    factors = [
        log_uniform(rng, 1.6, 3.0) ** (1 if happens(rng, 0.5) else -1) if kind == "unlike" else 1.0
        for _ in range(models)
    ]
    return tuple(Past(answers=int(rng.integers(*HISTORY_ANSWERS)), factor=factor) for factor in factors)

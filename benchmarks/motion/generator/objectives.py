"""Objectives of drawn scenarios: first tokens, whole answers, and batch work."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.motion.generator.chance import Ranges, Rng, happens, log_uniform, pick, rounded, whole

CLASSES: Final[Ranges] = ((0.2, 1, 1), (0.6, 2, 3), (0.2, 4, 5))

FIRST_TOKEN_S: Final = ((0.25, (1.0, 3.0)), (0.45, (3.0, 20.0)), (0.3, (20.0, 120.0)))
"""Ranges of first-token objectives."""

ANSWER_S: Final = ((0.6, (20.0, 180.0)), (0.25, (180.0, 1200.0)), (0.15, (1200.0, 14400.0)))
"""Ranges of deadlines of whole answers."""

BATCH: Final = 0.5
"""Share of scenarios with batch work, which has no objective."""

SAME_MIX: Final = 0.5
"""Share of scenarios in which all models have the same mix of classes."""

Mix = Mapping[str, float]
"""Share of the requests by class."""


def draw_classes(rng: Rng) -> dict[str, dict[str, Any]]:
    """Draw classes as a scenario file has them; at least one has an objective."""
    classes: dict[str, dict[str, Any]] = {}
    for _ in range(whole(rng, CLASSES)):
        if happens(rng, 0.6):
            target_s = rounded(log_uniform(rng, *pick(rng, FIRST_TOKEN_S)), 2)
            classes[f"first-{target_s:g}s"] = {"ttft_ms": rounded(target_s * 1000)}
        else:
            target_s = rounded(log_uniform(rng, *pick(rng, ANSWER_S)), 2)
            classes[f"answer-{target_s:g}s"] = {"deadline_ms": rounded(target_s * 1000)}
    if happens(rng, BATCH):
        classes["batch"] = {}
    return classes


def draw_mixes(rng: Rng, models: Sequence[str], classes: Sequence[str]) -> dict[str, Mix]:
    """Draw the shares of the classes, by model."""
    if happens(rng, SAME_MIX):
        return dict.fromkeys(models, _mix(rng, classes))
    return {model: _mix(rng, classes) for model in models}


def _mix(rng: Rng, classes: Sequence[str]) -> Mix:
    """Draw shares in whole percent that add up to 1."""
    percents = [int(each) for each in rng.multinomial(100, rng.dirichlet([1.0] * len(classes)))]
    return {name: percent / 100 for name, percent in zip(classes, percents, strict=True) if percent}

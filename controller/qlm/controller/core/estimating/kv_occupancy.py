"""KV cache occupancy of running requests, compared with the class means: long answers may have other prompts.

Length counts and mean prompts do not show how prompt and answer depend on each other. Requests with long
answers are in the batch more often. If their prompts are shorter than others (a summary of a long text is
short, say, or both must fit one context), then more requests fit at once than the means imply. Agents report
the KV cache that their running requests occupy; the ratio to the class means is `Workload.prompt_bias`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from qlm.controller.core.estimating.classes import ClassPosterior
from qlm.controller.core.estimating.instances import InstanceHistory, KvCosts, KvReadings
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.view import ClusterView
from qlm.rct_estimator.workload import Workload, mixture

ANSWERS_PRIOR: Final = 50.0
"""Weight of the assumption of independent lengths, in answers."""

BIAS_BOUNDS: Final = (0.4, 2.5)
"""Plausible prompt biases; beyond them, something else is in the cache."""

DISPERSION_BOUNDS: Final = (0.25, 2.5)
"""Plausible cost dispersions."""


@dataclass(frozen=True, slots=True)
class KvOccupancy:
    """Dependence of prompts and answers of a model, beyond the class means; see `Workload`."""

    prompt_bias: float = 1.0
    cost_dispersion: float = 1.0


INDEPENDENT: Final = KvOccupancy()
"""Assumption before any reading: prompts and answers are independent."""


def kv_occupancies(
    view: ClusterView,
    histories: Mapping[InstanceId, InstanceHistory],
    mixed: Mapping[ModelId, Workload],
) -> dict[tuple[ModelId, str], KvOccupancy]:
    """Return the occupancy terms of each model on each kind of accelerator with readings.

    Args:
        view: The cluster.
        histories: Histories of its instances.
        mixed: `model_mixtures` of its classes.
    """
    readings: defaultdict[tuple[ModelId, str], list[KvReadings]] = defaultdict(list)
    costs: defaultdict[tuple[ModelId, str], list[KvCosts]] = defaultdict(list)
    for status in view.instances:
        history = histories[status.id]
        for model, reading in history.kv_readings.items():
            if reading.requests:
                readings[model, status.accelerator].append(reading)
                costs[model, status.accelerator].append(history.kv_costs.get(model, KvCosts()))
    return {
        key: _occupancy(each, costs[key], mixed[key[0]]) for key, each in readings.items() if key[0] in mixed
    }


def model_mixtures(classes: Mapping[RequestClass, ClassPosterior]) -> dict[ModelId, Workload]:
    """Return the mixture of the classes of each model, weighted by their answers so far.

    Lengths within a class are independent. Classes without answers or without prompts are left out.
    """
    mixed: defaultdict[ModelId, list[ClassPosterior]] = defaultdict(list)
    for cls, posterior in classes.items():
        if posterior.answers and posterior.workload.prompt_tokens:
            mixed[cls.model].append(posterior)
    return {model: mixture([(float(p.answers), p.workload) for p in each]) for model, each in mixed.items()}


def _occupancy(readings: Sequence[KvReadings], costs: Sequence[KvCosts], mixed: Workload) -> KvOccupancy:
    bias = _prompt_bias(readings, mixed)
    return KvOccupancy(bias, _cost_dispersion(costs, replace(mixed, prompt_bias=bias * mixed.prompt_bias)))


def _prompt_bias(readings: Sequence[KvReadings], mixed: Workload) -> float:
    """Return the observed prompt bias over that of the mixture, shrunk to 1 for few answers."""
    low, high = BIAS_BOUNDS
    age = mixed.age_tokens
    prompt = mixed.context_tokens - age
    context = sum(each.kv_tokens for each in readings) / sum(each.requests for each in readings)
    seen = min(high, max(low, (context - age) / prompt))
    answers = sum(each.answers for each in readings)
    return (answers * seen + ANSWERS_PRIOR) / (answers + ANSWERS_PRIOR)


def _cost_dispersion(costs: Sequence[KvCosts], mixed: Workload) -> float:
    """Return the observed variance of costs over that of the mixture, shrunk to 1 for few answers."""
    answers, total = sum(each.answers for each in costs), sum(each.token_steps for each in costs)
    expected = mixed.cost_cv2(1.0)
    if not (total and expected):
        return 1.0
    cv2 = sum(each.squares for each in costs) * answers / total**2 - 1
    seen = min(DISPERSION_BOUNDS[1], max(DISPERSION_BOUNDS[0], cv2 / expected))
    return (answers * seen + ANSWERS_PRIOR) / (answers + ANSWERS_PRIOR)

"""What running requests hold of the KV cache beside what classes say: long answers may have other prompts.

Counts of lengths and mean prompts tell nothing of how the two depend on each other. A request with a long
answer is met in the batch more often; if its prompt is shorter than others (a summary of a long text is
short, say, or both must fit one context), then more fit at once than the means say. Agents tell how much
their running requests hold; by what that differs from the classes' means is `Workload.held_ratio`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from qlm.controller.estimating.classes import ClassPosterior
from qlm.controller.estimating.instances import Costs, HeldTokens, InstanceMemory
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.view import ClusterView
from qlm.rct_estimator.workload import Workload, mixture

ANSWERS_PRIOR: Final = 50.0
"""Answers that the assumption of independent lengths is worth."""

RATIO_BOUNDS: Final = (0.4, 2.5)
"""Within these a ratio is believed; beyond, something else is in the cache."""


SCATTER_BOUNDS: Final = (0.25, 2.5)
"""Within these a scatter is believed."""


@dataclass(frozen=True, slots=True)
class HeldShape:
    """How the prompts and answers of a model depend on each other beyond what classes say.

    Attributes:
        ratio: See `Workload.held_ratio`.
        scatter: See `Workload.scatter`.
    """

    ratio: float = 1.0
    scatter: float = 1.0


INDEPENDENT: Final = HeldShape()
"""What is assumed before anything was watched."""


def held_shapes(
    view: ClusterView,
    memory: Mapping[InstanceId, InstanceMemory],
    classes: Mapping[RequestClass, ClassPosterior],
) -> dict[tuple[ModelId, str], HeldShape]:
    """Work out the shape of each model on each kind of accelerator that was watched with it.

    Args:
        view: The cluster.
        memory: What is remembered of its instances.
        classes: What is known of its classes; their answers so far say how they are mixed.
    """
    sums: defaultdict[tuple[ModelId, str], list[HeldTokens]] = defaultdict(list)
    costs: defaultdict[tuple[ModelId, str], list[Costs]] = defaultdict(list)
    for status in view.instances:
        for model, held in memory[status.id].held.items():
            if held.requests:
                sums[model, status.accelerator].append(held)
                costs[model, status.accelerator].append(memory[status.id].costs.get(model, Costs()))
    mixed = _mixed(classes)
    return {key: _shape(held, costs[key], mixed[key[0]]) for key, held in sums.items() if key[0] in mixed}


def _mixed(classes: Mapping[RequestClass, ClassPosterior]) -> dict[ModelId, Workload]:
    """What the requests of each model are like, were lengths independent in a class."""
    mixed: defaultdict[ModelId, list[ClassPosterior]] = defaultdict(list)
    for cls, posterior in classes.items():
        if posterior.answers and posterior.workload.prompt_tokens:
            mixed[cls.model].append(posterior)
    return {model: mixture([(float(p.answers), p.workload) for p in each]) for model, each in mixed.items()}


def _shape(readings: Sequence[HeldTokens], costs: Sequence[Costs], mixed: Workload) -> HeldShape:
    ratio = _ratio(readings, mixed)
    return HeldShape(ratio, _scatter(costs, replace(mixed, held_ratio=ratio * mixed.held_ratio)))


def _ratio(readings: Sequence[HeldTokens], mixed: Workload) -> float:
    """Compare what is held with the means; readings over few answers count little."""
    low, high = RATIO_BOUNDS
    age = mixed.age_tokens
    prompt = mixed.context_tokens - age
    held = sum(each.kv_tokens for each in readings) / sum(each.requests for each in readings)
    seen = min(high, max(low, (held - age) / prompt))
    answers = sum(each.answers for each in readings)
    return (answers * seen + ANSWERS_PRIOR) / (answers + ANSWERS_PRIOR)


def _scatter(costs: Sequence[Costs], mixed: Workload) -> float:
    """Compare how the costs of ended requests vary with what the moments say; few of them count little."""
    answers, total = sum(each.answers for each in costs), sum(each.token_steps for each in costs)
    expected = mixed.cost_cv2(1.0)
    if not (total and expected):
        return 1.0
    cv2 = sum(each.squares for each in costs) * answers / total**2 - 1
    seen = min(SCATTER_BOUNDS[1], max(SCATTER_BOUNDS[0], cv2 / expected))
    return (answers * seen + ANSWERS_PRIOR) / (answers + ANSWERS_PRIOR)

"""What running requests hold of the KV cache beside what classes say: long answers may have other prompts.

Counts of lengths and mean prompts tell nothing of how the two depend on each other. A request with a long
answer is met in the batch more often; if its prompt is shorter than others (a summary of a long text is
short, say, or both must fit one context), then more fit at once than the means say. Agents tell how much
their running requests hold; by what that differs from the classes' means is `Workload.held_ratio`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from qlm.controller.estimating.classes import ClassPosterior
from qlm.controller.estimating.instances import HeldTokens, InstanceMemory
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.view import ClusterView
from qlm.rct_estimator.workload import mixture

ANSWERS_PRIOR: Final = 50.0
"""Answers that the assumption of independent lengths is worth."""

RATIO_BOUNDS: Final = (0.4, 2.5)
"""Within these a ratio is believed; beyond, something else is in the cache."""


def held_ratios(
    view: ClusterView,
    memory: Mapping[InstanceId, InstanceMemory],
    classes: Mapping[RequestClass, ClassPosterior],
) -> dict[tuple[ModelId, str], float]:
    """Work out E[p O] / (E[p] E[O]) of each model on each kind of accelerator that was watched with it.

    Args:
        view: The cluster.
        memory: What is remembered of its instances.
        classes: What is known of its classes; their answers so far say how they are mixed.
    """
    sums: defaultdict[tuple[ModelId, str], list[HeldTokens]] = defaultdict(list)
    for status in view.instances:
        for model, held in memory[status.id].held.items():
            if held.requests:
                sums[model, status.accelerator].append(held)
    means = _means(classes)
    return {key: _ratio(held, *means[key[0]]) for key, held in sums.items() if key[0] in means}


def _means(classes: Mapping[RequestClass, ClassPosterior]) -> dict[ModelId, tuple[float, float]]:
    """Mean prompt and mean age of the running requests of each model, were lengths independent in a class."""
    mixed: defaultdict[ModelId, list[ClassPosterior]] = defaultdict(list)
    for cls, posterior in classes.items():
        if posterior.answers and posterior.workload.prompt_tokens:
            mixed[cls.model].append(posterior)
    means = {}
    for model, each in mixed.items():
        both = mixture([(float(p.answers), p.workload) for p in each])
        means[model] = both.context_tokens - both.age_tokens, both.age_tokens
    return means


def _ratio(readings: Sequence[HeldTokens], prompt: float, age: float) -> float:
    """Compare what is held with the means; readings over few answers count little."""
    low, high = RATIO_BOUNDS
    held = sum(each.kv_tokens for each in readings) / sum(each.requests for each in readings)
    seen = min(high, max(low, (held - age) / prompt))
    answers = sum(each.answers for each in readings)
    return (answers * seen + ANSWERS_PRIOR) / (answers + ANSWERS_PRIOR)

"""What running requests hold of the KV cache beside what classes say: long answers may have other prompts.

Counts of lengths and mean prompts tell nothing of how the two depend on each other. A request with a long
answer is met in the batch more often; if its prompt is shorter than others (a summary of a long text is
short, say, or both must fit one context), then more fit at once than the means say. Agents tell how much
their running requests hold; by what that differs from the classes' means is `Workload.held_ratio`.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from qlm.controller.estimating.classes import ClassPosterior
from qlm.controller.estimating.instances import InstanceMemory
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.view import ClusterView
from qlm.rct_estimator.throughput import mixture

READ_PRIOR: Final = 30.0
"""Running requests, as read, that the assumption of independent lengths is worth."""

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
    tokens: defaultdict[tuple[ModelId, str], float] = defaultdict(float)
    requests: defaultdict[tuple[ModelId, str], float] = defaultdict(float)
    for status in view.instances:
        for model, held in memory[status.id].held.items():
            tokens[model, status.accelerator] += held.kv_tokens
            requests[model, status.accelerator] += held.requests
    means = _means(classes)
    return {
        key: _ratio(tokens[key] / requests[key], requests[key], *means[key[0]])
        for key in requests
        if requests[key] and key[0] in means
    }


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


def _ratio(held: float, requests: float, prompt: float, age: float) -> float:
    """Compare what is held with the means; few readings count little."""
    low, high = RATIO_BOUNDS
    seen = min(high, max(low, (held - age) / prompt))
    return (requests * seen + READ_PRIOR) / (requests + READ_PRIOR)

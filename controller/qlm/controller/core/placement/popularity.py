"""How often each model is asked for: few requests say little, so popularity is smoothed.

With n of N requests for one of M models, its expected share is (n + 1/2) / (N + M/2): the mean under the
prior of Jeffreys. One request of ten makes a model no ten times as popular as one without any.
"""

from collections.abc import Collection, Mapping
from typing import Final

from qlm.domain.ids import ModelId

PRIOR_REQUESTS: Final = 0.5
"""Requests for each model that the prior counts as (Jeffreys)."""


def expected_rates(
    asked_rps: Mapping[ModelId, float], watched_s: float, models: Collection[ModelId]
) -> dict[ModelId, float]:
    """Return the expected requests per second of each model; together they are as many as were counted.

    Args:
        asked_rps: Requests per second for each model that was asked for.
        watched_s: Time in which they were counted.
        models: All models that may be asked for.
    """
    total_rps = sum(asked_rps.values())
    all_models = asked_rps.keys() | models
    prior_rps = PRIOR_REQUESTS / watched_s if watched_s > 0 else 0.0
    if not total_rps or not prior_rps:
        return {model: asked_rps.get(model, 0.0) for model in all_models}
    kept = total_rps / (total_rps + prior_rps * len(all_models))
    return {model: kept * (asked_rps.get(model, 0.0) + prior_rps) for model in all_models}

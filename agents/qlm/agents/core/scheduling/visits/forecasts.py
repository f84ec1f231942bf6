"""What is expected of the classes of an instance: service times, answers, arrivals."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from qlm.agents.core.scheduling.visits.remain import Work
from qlm.agents.core.state import AgentState
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.domain.virtual_queue import ClassForecast

SERVICE_UNKNOWN_S: Final = 0.05
"""Assumed time between two ends of a class without a forecast, before any request ended here."""

USUAL_TOKENS: Final = 1000.0
"""Assumed size of a request while none runs."""


class Forecasts:
    """Forecasts of the plan, with the agent's own measurements where the plan has none."""

    def __init__(self, state: AgentState) -> None:
        self._of_class = {each.cls: each for each in state.queue.forecasts}
        of_model = defaultdict[ModelId, list[ClassForecast]](list)
        for each in state.queue.forecasts:
            of_model[each.cls.model].append(each)
        self._of_model = of_model
        self._stats = state.stats
        self._costs, self._kv = state.costs.kv, state.requests.kv

    def of(self, model: ModelId) -> Iterable[ClassForecast]:
        """Return the forecasts of the classes of a model."""
        return self._of_model.get(model, ())

    def service_s(self, cls: RequestClass) -> float:
        """Return the time that a request of a class adds to the wait of others."""
        known = self._of_class.get(cls)
        return known.service_s if known else self.mean_service_s(cls.model)

    def answer_s(self, cls: RequestClass) -> float:
        """Return the mean time until an answer ends."""
        known = self._of_class.get(cls)
        if known is not None:
            return known.answer_s
        alike = self._of_model.get(cls.model)
        return max(each.answer_s for each in alike) if alike else self._stats.pace_of(cls.model).service_s

    def work(self, cls: RequestClass) -> Work:
        """Return the times of a request of a class of the awake model."""
        answer_s, service_s = self.answer_s(cls), self.service_s(cls)
        return Work(answer_s=answer_s, service_s=service_s, refill_s=self._refill_s(cls.model))

    def _refill_s(self, model: ModelId) -> float:
        mean_tokens = self._kv.tokens / self._kv.running if self._kv.running else USUAL_TOKENS
        return mean_tokens * self._costs[model].recompute_s if model in self._costs else float("inf")

    def mean_service_s(self, model: ModelId) -> float:
        """Return the mean of `service_s` over the arrivals for a model."""
        alike = self._of_model.get(model)
        return _mean(alike, [each.service_s for each in alike]) if alike else SERVICE_UNKNOWN_S

    def mean_answer_s(self, model: ModelId) -> float:
        """Return the mean of `answer_s` over the arrivals for a model; 0 if it has none."""
        alike = self._of_model.get(model)
        return _mean(alike, [each.answer_s for each in alike]) if alike else 0.0


def _mean(classes: Sequence[ClassForecast], values: Sequence[float]) -> float:
    """Return the mean over the arrivals of classes."""
    rate_rps = sum(each.rate_rps for each in classes)
    if not rate_rps:
        return sum(values) / len(values)
    return sum(each.rate_rps * value for each, value in zip(classes, values, strict=True)) / rate_rps

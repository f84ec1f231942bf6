"""Answers of all classes of a model: what is assumed of one of them before it has answered itself.

A class is assumed to be like the other classes of its model with the same kind of objective, these like all
classes of the model, and the model like a typical one. Each step counts as `PRIOR_STRENGTH` answers.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from qlm.controller.core.history.classes import ClassRecord, with_former
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.domain.view import ClassView, ClusterView
from qlm.rct_estimator.output_length import (
    NO_COUNTS,
    LengthCounts,
    OutputLengths,
    length_counts,
    pooled_prior,
)

USUAL_TOKENS: Final = 100.0
"""Assumed mean answer of a model that has not answered: the geometric mean over models of public traces."""

USUAL_WEIGHT: Final = 2.0
"""Number of answers as which `USUAL_TOKENS` counts in the mean of a model."""

RESIDENCE_MIN_S: Final = 10.0
"""Running answers count as censored only where an answer takes at least this long on average. Reports are
half a second old; answers that ended since (one in twenty at this threshold) count twice."""


@dataclass(frozen=True, slots=True)
class ModelAnswers:
    """Answers of a model.

    Attributes:
        answers: Number of those that ended, also at their limit.
        tokens: Their tokens, and those of running ones.
    """

    answers: float = 0.0
    tokens: float = 0.0

    @property
    def mean_tokens(self) -> float:
        """Mean length of an answer.

        For exponential lengths, all tokens seen over the number of ends estimate the mean, however many
        answers still run. `USUAL_WEIGHT` answers of a usual length count as seen.
        """
        return (USUAL_WEIGHT * USUAL_TOKENS + self.tokens) / (USUAL_WEIGHT + self.answers)


NO_ANSWERS: Final = ModelAnswers()


def model_answers(
    view: ClusterView, records: Mapping[RequestClass, ClassRecord]
) -> dict[ModelId, ModelAnswers]:
    """Return the answers of each model, of its classes in the view and of recorded ones."""
    ended: defaultdict[ModelId, float] = defaultdict(float)
    tokens: defaultdict[ModelId, float] = defaultdict(float)
    present = {each.cls for each in view.classes}
    for each in view.classes:
        ended[each.cls.model] += each.lengths.answers
        tokens[each.cls.model] += each.lengths.tokens
    for cls, record in records.items():
        absent = cls not in present
        ended[cls.model] += record.former_answers + absent * record.counted_answers
        tokens[cls.model] += record.former_tokens + absent * record.counted_tokens
    for of_class in chain.from_iterable(status.answers for status in view.instances):
        tokens[of_class.cls.model] += sum(so_far for _bin, _count, so_far in of_class.counts)
    return {model: ModelAnswers(ended[model], tokens[model]) for model in ended | tokens}


def objective_kind(cls: RequestClass) -> str:
    """Return the kind of a class's objective: the first word of its label."""
    return cls.slo.partition("-")[0]


class AnswerPool:
    """Answers by model and kind of objective, added up when a prior is asked for."""

    def __init__(self, view: ClusterView, records: Mapping[RequestClass, ClassRecord]) -> None:
        self._view = view
        self._records = records
        self._of_class: dict[RequestClass, LengthCounts] = {}
        self._of_kind: dict[tuple[ModelId, str], LengthCounts] = {}
        self._of_model: dict[ModelId, LengthCounts] = {}

    def prior(self, cls: RequestClass, typical: OutputLengths) -> OutputLengths:
        """Return what is assumed of a class; `typical` is what would be assumed of a class of any model."""
        if cls.model not in self._of_model:
            self._add_up(cls.model)
        own = self._of_class.get(cls, NO_COUNTS)
        prior = typical
        for all_of in (self._of_model[cls.model], self._of_kind.get((cls.model, objective_kind(cls)))):
            others = NO_COUNTS if all_of is None else all_of.without(own)
            if others.answers > 0:
                prior = pooled_prior(OutputLengths(prior.prior, prior.seen.combined(others)))
        return prior

    def _add_up(self, model: ModelId) -> None:
        of_class = {cls: each.counts for cls, each in self._records.items() if cls.model == model}
        for each in self._view.classes:
            if each.cls.model == model:
                record = self._records.get(each.cls)
                seen = length_counts(with_running(each, self._view).lengths)
                of_class[each.cls] = with_former(seen, record.former if record else None)
        self._of_class |= of_class
        whole = NO_COUNTS
        for cls, counts in of_class.items():
            key = (model, objective_kind(cls))
            whole, self._of_kind[key] = (
                whole.combined(counts),
                self._of_kind.get(key, NO_COUNTS).combined(counts),
            )
        self._of_model[model] = whole


def with_running(cls: ClassView, view: ClusterView) -> ClassView:
    """Return the class with its running answers counted as censored at their present length."""
    running = [
        each.counts
        for status in view.instances
        if status.work.request_s >= RESIDENCE_MIN_S * max(1, status.work.ended)
        for each in status.answers
        if each.cls == cls.cls
    ]
    return replace(cls, lengths=cls.lengths.with_open(chain.from_iterable(running))) if running else cls

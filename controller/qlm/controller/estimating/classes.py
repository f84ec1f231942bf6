"""What is known of each class's requests: posteriors of output lengths, learned from the store's counts."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from qlm.domain.group import RequestClass
from qlm.domain.length_histogram import LengthHistogram
from qlm.domain.view import ClassView, ClusterView
from qlm.rct_estimator.length_predictive import TOKENS_MAX, LengthPredictive
from qlm.rct_estimator.output_length import (
    PRIOR_STRENGTH,
    OutputLengths,
    pooled_prior,
    posterior,
    typical_prior,
)
from qlm.rct_estimator.workload import Workload, class_workload

MOVED_SHARE: Final = 0.05
"""A posterior is worked out anew when the answers it rests on, its prior's included, or the mean output
limit have changed by more than this share."""

PROMPT_MOVED_SHARE: Final = 0.01
"""Likewise of the mean prompt: how many requests fit the KV cache, and with it all waits, go with it."""

POOL_ANSWERS_MIN: Final = 20
"""Answers that a model's other classes must have seen to be the prior of a class that has seen fewer."""

RESIDENCE_MIN_S: Final = 10.0
"""Answers that an instance is at count only where they take so long on average: what it says of them is half
a second old, and those that have ended since then, one in twenty here, count twice."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassPosterior:
    """One class, as of the counts it was worked out from.

    Attributes:
        answers: Its own answers then.
        pooled: Answers of the model's other classes that its prior is made of; 0 for a typical prior.
        mean_prompt_tokens: Then.
        mean_max_tokens: Then.
        lengths: Distribution of the next answer's length.
        workload: Means and variances for the engine.
    """

    answers: int
    pooled: int
    mean_prompt_tokens: float
    mean_max_tokens: float
    lengths: LengthPredictive
    workload: Workload

    @property
    def cap(self) -> float:
        """Output limit of its requests, tokens."""
        return self.mean_max_tokens or TOKENS_MAX

    def stands(self, view: ClassView, answers: int, pooled: int) -> bool:
        """Whether the counts have not moved by more than `MOVED_SHARE` since."""
        # A prior that is worth a smaller share than that of what is known can be what it likes.
        matters = self.answers < PRIOR_STRENGTH / MOVED_SHARE
        pairs = (
            (self.answers + PRIOR_STRENGTH, answers + PRIOR_STRENGTH, MOVED_SHARE),
            (self.pooled * matters, pooled * matters, MOVED_SHARE),
            (self.mean_prompt_tokens, view.mean_prompt_tokens, PROMPT_MOVED_SHARE),
            (self.mean_max_tokens, view.mean_max_tokens, MOVED_SHARE),
        )
        return all(abs(now - then) <= share * then for then, now, share in pairs)


def class_posteriors(
    view: ClusterView, before: Mapping[RequestClass, ClassPosterior], kept: Collection[RequestClass] = ()
) -> Mapping[RequestClass, ClassPosterior]:
    """Learn from what the store has counted.

    Args:
        view: The cluster. The counts of classes of which nothing waits are not in it.
        before: What was known.
        kept: Classes that are not forgotten when they leave the view: they will be back soon.

    Returns:
        What is known now; `before` itself if nothing has moved.
    """
    answers = {each.cls: each.lengths.answers for each in view.classes}
    of_model: Counter[str] = Counter()
    for cls, count in answers.items():
        of_model[cls.model] += count
    after: dict[RequestClass, ClassPosterior] = {}
    for each in view.classes:
        own = answers[each.cls]
        pooled = of_model[each.cls.model] - own
        pooled = pooled if pooled > own and pooled >= POOL_ANSWERS_MIN else 0
        known = before.get(each.cls)
        if known is None or not known.stands(each, own, pooled):
            known = class_posterior(_with_open(each, view), view if pooled else None, own, pooled)
        after[each.cls] = known
    after |= {cls: known for cls, known in before.items() if cls in kept and cls not in after}
    same = len(after) == len(before) and all(before.get(cls) is known for cls, known in after.items())
    return before if same else after


def _with_open(cls: ClassView, view: ClusterView) -> ClassView:
    """Count the answers that instances are at, too, as longer than they are so far."""
    told = [
        each.counts
        for status in view.instances
        if status.work.request_s >= RESIDENCE_MIN_S * max(1, status.work.ended)
        for each in status.answers
        if each.cls == cls.cls
    ]
    return replace(cls, lengths=cls.lengths.with_open(chain.from_iterable(told))) if told else cls


def class_posterior(
    view: ClassView, others: ClusterView | None = None, answers: int = 0, pooled: int = 0
) -> ClassPosterior:
    """Work out the posterior of one class, with its model's other classes as the prior if they are given."""
    prior = typical_prior(view.mean_max_tokens or None)
    if others is not None:
        prior = pooled_prior(_of_others(others, view.cls, prior))
    lengths = posterior(view.lengths, prior).predictive()
    return ClassPosterior(
        answers=answers,
        pooled=pooled,
        mean_prompt_tokens=view.mean_prompt_tokens,
        mean_max_tokens=view.mean_max_tokens,
        lengths=lengths,
        workload=class_workload(
            lengths,
            view.mean_prompt_tokens,
            view.mean_max_tokens or TOKENS_MAX,
            prompt_var=view.var_prompt_tokens,
            max_var=view.var_max_tokens,
        ),
    )


def _of_others(view: ClusterView, cls: RequestClass, prior: OutputLengths) -> OutputLengths:
    learned = prior
    for each in view.classes:
        if each.cls.model == cls.model and each.cls != cls:
            seen: LengthHistogram = each.lengths
            learned = posterior(seen, learned)
    return learned

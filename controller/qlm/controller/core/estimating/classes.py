"""Posteriors of each class's output lengths, learned from the counts in the store."""

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
"""Relative change of the number of answers (its prior included) or of the mean output limit after which a
posterior is computed again."""

PROMPT_MOVED_SHARE: Final = 0.01
"""The same threshold for the mean prompt: the batch that fits the KV cache depends on it, and all waits."""

POOL_ANSWERS_MIN: Final = 20
"""Least number of answers of a model's other classes to serve as the prior of a class with fewer."""

RESIDENCE_MIN_S: Final = 10.0
"""Running answers count as censored only where an answer takes at least this long on average. Reports are
half a second old; answers that ended since (one in twenty at this threshold) count twice."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassPosterior:
    """Posterior of one class, with the counts it was computed from.

    Attributes:
        answers: Answers of the class.
        pooled: Answers of the model's other classes behind its prior; 0 for a typical prior.
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
        """Mean output limit, tokens."""
        return self.mean_max_tokens or TOKENS_MAX

    def is_current(self, view: ClassView, answers: int, pooled: int) -> bool:
        """Return whether no count has changed by more than its threshold."""
        # A prior whose weight is below the threshold does not matter.
        matters = self.answers < PRIOR_STRENGTH / MOVED_SHARE
        pairs = (
            (self.answers + PRIOR_STRENGTH, answers + PRIOR_STRENGTH, MOVED_SHARE),
            (self.pooled * matters, pooled * matters, MOVED_SHARE),
            (self.mean_prompt_tokens, view.mean_prompt_tokens, PROMPT_MOVED_SHARE),
            (self.mean_max_tokens, view.mean_max_tokens, MOVED_SHARE),
        )
        return all(abs(now - before) <= share * before for before, now, share in pairs)


def class_posteriors(
    view: ClusterView, before: Mapping[RequestClass, ClassPosterior], kept: Collection[RequestClass] = ()
) -> Mapping[RequestClass, ClassPosterior]:
    """Return the posteriors after a view; `before` itself if nothing changed.

    Args:
        view: The cluster; it lacks classes without waiting requests.
        before: The posteriors so far.
        kept: Classes to keep although they left the view: they will be back soon.
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
        if known is None or not known.is_current(each, own, pooled):
            known = class_posterior(_with_running(each, view), view if pooled else None, own, pooled)
        after[each.cls] = known
    after |= {cls: known for cls, known in before.items() if cls in kept and cls not in after}
    same = len(after) == len(before) and all(before.get(cls) is known for cls, known in after.items())
    return before if same else after


def _with_running(cls: ClassView, view: ClusterView) -> ClassView:
    """Return the class with its running answers counted as censored at their present length."""
    running = [
        each.counts
        for status in view.instances
        if status.work.request_s >= RESIDENCE_MIN_S * max(1, status.work.ended)
        for each in status.answers
        if each.cls == cls.cls
    ]
    return replace(cls, lengths=cls.lengths.with_open(chain.from_iterable(running))) if running else cls


def class_posterior(
    view: ClassView, others: ClusterView | None = None, answers: int = 0, pooled: int = 0
) -> ClassPosterior:
    """Compute the posterior of one class; `others` makes the model's other classes its prior."""
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

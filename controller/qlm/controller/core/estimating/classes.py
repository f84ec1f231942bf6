"""Posteriors of each class's output lengths, learned from the counts in the store and in former records."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from qlm.controller.core.history.classes import ClassRecord
from qlm.controller.core.history.model_answers import (
    NO_ANSWERS,
    USUAL_TOKENS,
    AnswerPool,
    model_answers,
    with_running,
)
from qlm.domain.group import RequestClass
from qlm.domain.view import ClassView, ClusterView
from qlm.rct_estimator.length_predictive import TOKENS_MAX, LengthPredictive
from qlm.rct_estimator.output_length import (
    PRIOR_STRENGTH,
    LengthCounts,
    OutputLengths,
    posterior,
    typical_prior,
)
from qlm.rct_estimator.workload import Workload, class_workload

MOVED_SHARE: Final = 0.05
"""Relative change of the number of answers (its prior included) or of the mean output limit after which a
posterior is computed again."""

PRIOR_MOVED_SHARE: Final = 0.2
"""The same threshold for what the prior is made of: it counts as a few answers."""

PROMPT_MOVED_SHARE: Final = 0.01
"""The same threshold for the mean prompt: the batch that fits the KV cache depends on it, and all waits."""


CACHED_MOVED: Final = 0.02
"""The same threshold for the cached share of the prompts, absolute."""

PROMPTS_PRIOR: Final = 4.0
"""Weight of the assumption that nothing is cached, in prompts."""


class CachedShare(NamedTuple):
    """What prefix caches hold of the prompts of a class.

    Attributes:
        tokens: Share of the prompt tokens.
        hits: Share of the prompts of which they hold something.
    """

    tokens: float = 0.0
    hits: float = 1.0


NOTHING_CACHED: Final = CachedShare()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassPosterior:
    """Posterior of one class, with the counts it was computed from.

    Attributes:
        answers: Answers of the class.
        pooled: Answers of the model's other classes behind its prior.
        usual_tokens: Mean answer of the model behind its prior.
        lengths: Distribution of the next answer's length.
        workload: Means and variances for the engine.
    """

    answers: float
    pooled: float
    usual_tokens: float
    mean_prompt_tokens: float
    mean_max_tokens: float
    lengths: LengthPredictive
    workload: Workload

    @property
    def cap(self) -> float:
        """Mean output limit, tokens."""
        return self.mean_max_tokens or TOKENS_MAX

    def is_current(
        self, view: ClassView, answers: float, pooled: float, usual_tokens: float, cached: CachedShare
    ) -> bool:
        """Return whether no count has changed by more than its threshold."""
        known = self.workload.cached_share, self.workload.hit_share
        if any(abs(now - before) > CACHED_MOVED for now, before in zip(cached, known, strict=True)):
            return False
        # A prior whose weight is below the threshold does not matter.
        matters = self.answers < PRIOR_STRENGTH / MOVED_SHARE
        strength = PRIOR_STRENGTH
        pairs = (
            (self.answers + strength, answers + strength, MOVED_SHARE),
            ((self.pooled + strength) * matters, (pooled + strength) * matters, PRIOR_MOVED_SHARE),
            (self.usual_tokens * matters, usual_tokens * matters, PRIOR_MOVED_SHARE),
            (self.mean_prompt_tokens, view.mean_prompt_tokens, PROMPT_MOVED_SHARE),
            (self.mean_max_tokens, view.mean_max_tokens, MOVED_SHARE),
        )
        return all(abs(now - before) <= share * before for before, now, share in pairs)


def class_posteriors(
    view: ClusterView,
    before: Mapping[RequestClass, ClassPosterior],
    kept: Collection[RequestClass] = (),
    records: Mapping[RequestClass, ClassRecord] | None = None,
) -> Mapping[RequestClass, ClassPosterior]:
    """Return the posteriors after a view; `before` itself if nothing changed.

    Args:
        view: The cluster; it lacks classes without waiting requests.
        before: The posteriors so far.
        kept: Classes to keep although they left the view: they will be back soon.
        records: What is known of classes besides the view.
    """
    records = records or {}
    of_models, pool = model_answers(view, records), AnswerPool(view, records)
    known_already = before.keys() | {each.cls for each in view.classes}
    recalled = (records[cls].view(cls) for cls in kept if cls not in known_already and cls in records)
    cached = cached_shares(view)
    after: dict[RequestClass, ClassPosterior] = {}
    for each in chain(view.classes, recalled):
        record, of_model = records.get(each.cls), of_models.get(each.cls.model, NO_ANSWERS)
        own = each.lengths.answers + (record.former_answers if record else 0.0)
        known = before.get(each.cls)
        pooled, share = max(0.0, of_model.answers - own), cached.get(each.cls, NOTHING_CACHED)
        current = (own, pooled, of_model.mean_tokens, share)
        if known is None or not known.is_current(each, *current):
            prior = pool.prior(each.cls, typical_prior(each.mean_max_tokens or None, of_model.mean_tokens))
            former = record.former if record else None
            known = class_posterior(with_running(each, view), prior, former, *current)
        after[each.cls] = known
    after |= {cls: known for cls, known in before.items() if cls in kept and cls not in after}
    same = len(after) == len(before) and all(before.get(cls) is known for cls, known in after.items())
    return before if same else after


def class_posterior(
    view: ClassView,
    prior: OutputLengths | None = None,
    former: LengthCounts | None = None,
    answers: float = 0.0,
    pooled: float = 0.0,
    usual_tokens: float = USUAL_TOKENS,
    cached: CachedShare = NOTHING_CACHED,
) -> ClassPosterior:
    """Compute the posterior of one class.

    Args:
        view: The class, with its answers.
        prior: What is assumed of it; without it, what follows from `usual_tokens`.
        former: Answers that the view does not count.
        answers: Number of its answers.
        pooled: Answers of other classes behind the prior.
        usual_tokens: Mean answer of the model behind the prior.
        cached: What the prefix caches hold of its prompts.
    """
    prior = prior or typical_prior(view.mean_max_tokens or None, usual_tokens)
    known = prior if former is None else OutputLengths(prior.prior, prior.seen.combined(former))
    lengths = posterior(view.lengths, known).predictive()
    return ClassPosterior(
        answers=answers,
        pooled=pooled,
        usual_tokens=usual_tokens,
        mean_prompt_tokens=view.mean_prompt_tokens,
        mean_max_tokens=view.mean_max_tokens,
        lengths=lengths,
        workload=class_workload(
            lengths,
            view.mean_prompt_tokens,
            view.mean_max_tokens or TOKENS_MAX,
            prompt_var=view.var_prompt_tokens,
            max_var=view.var_max_tokens,
            cached_share=cached.tokens,
            hit_share=cached.hits,
        ),
    )


def cached_shares(view: ClusterView) -> dict[RequestClass, CachedShare]:
    """Return what prefix caches held lately of the prompts of each class, over all instances.

    No instance is better than another in advance: the requests of a class go to any of those that serve it.
    """
    sums: dict[RequestClass, tuple[float, float, float, float]] = {}
    for status in view.instances:
        for each in status.prompts:
            prompts, hits, tokens, cached = sums.get(each.cls, (0.0, 0.0, 0.0, 0.0))
            sums[each.cls] = (
                prompts + each.prompts,
                hits + each.hits,
                tokens + each.prompt_tokens,
                cached + each.cached_tokens,
            )
    return {cls: _share(*each) for cls, each in sums.items()}


def _share(prompts: float, hits: float, prompt_tokens: float, cached_tokens: float) -> CachedShare:
    weight = prompts / (prompts + PROMPTS_PRIOR)
    tokens = weight * min(1.0, cached_tokens / max(1.0, prompt_tokens))
    if not tokens:
        return NOTHING_CACHED
    return CachedShare(tokens, min(1.0, max(tokens, hits / prompts)))

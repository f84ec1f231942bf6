"""Counts of each class that outlive the view, the store's own counts, and the controller."""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from qlm.domain.group import RequestClass
from qlm.domain.length_histogram import NO_LENGTHS, LengthHistogram
from qlm.domain.view import ClassView, ClusterView
from qlm.rct_estimator.output_length import NO_COUNTS, LengthCounts, length_counts

CLASSES_MAX: Final = 1000
"""Largest number of classes that are remembered; the one seen longest ago goes first."""

FORMER_ANSWERS_MAX: Final = 100.0
"""Largest weight of answers that the store no longer counts: traffic changes."""

HALF_LIFE_S: Final = 86_400.0
"""Age at which that weight is half: a day-old distribution of lengths is still a good assumption."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassRecord:
    """Counts of a class at its last reading.

    Attributes:
        at_ns: Time of the reading, nanoseconds since the epoch.
        finished: Requests ever ended with an answer, as the store counts them.
        mean_prompt_tokens: Mean prompt length.
        var_prompt_tokens: Variance of that length.
        mean_max_tokens: Mean output limit.
        var_max_tokens: Variance of that limit.
        lengths: Latest answers, as the store counts them.
        former: Answers that the store does not count: it was emptied, or not read yet.
        recalled: The record is of an earlier controller, and the class has not been seen since.
        counted_answers: Number of answers in `lengths`.
        counted_tokens: Their tokens.
        former_answers: Number of answers in `former`.
        former_tokens: Their tokens.
    """

    at_ns: int
    finished: int
    mean_prompt_tokens: float
    var_prompt_tokens: float
    mean_max_tokens: float
    var_max_tokens: float
    lengths: LengthHistogram = NO_LENGTHS
    former: LengthCounts | None = None
    recalled: bool = False
    counted_answers: float = field(init=False)
    counted_tokens: float = field(init=False)
    former_answers: float = field(init=False)
    former_tokens: float = field(init=False)

    def __post_init__(self) -> None:
        # Added up once: the records of all classes are asked for them at each view.
        former = self.former or NO_COUNTS
        object.__setattr__(self, "counted_answers", float(self.lengths.answers))
        object.__setattr__(self, "counted_tokens", float(self.lengths.tokens))
        object.__setattr__(self, "former_answers", former.answers)
        object.__setattr__(self, "former_tokens", former.all_tokens)

    @property
    def counts(self) -> LengthCounts:
        """All answers."""
        return with_former(length_counts(self.lengths), self.former)

    def view(self, cls: RequestClass) -> ClassView:
        """Return the class as a view without requests."""
        return ClassView(
            cls=cls,
            queued=0,
            groups=(),
            mean_prompt_tokens=self.mean_prompt_tokens,
            var_prompt_tokens=self.var_prompt_tokens,
            mean_max_tokens=self.mean_max_tokens,
            var_max_tokens=self.var_max_tokens,
            finished=self.finished,
            lengths=self.lengths,
        )


def with_former(counts: LengthCounts, former: LengthCounts | None) -> LengthCounts:
    """Return counts with those of former answers."""
    return counts if former is None else counts.combined(former)


def update_records(
    view: ClusterView,
    now_ns: int,
    due: Set[RequestClass],
    before: Mapping[RequestClass, ClassRecord],
) -> Mapping[RequestClass, ClassRecord]:
    """Return the records after a view; `before` itself if nothing is due.

    Args:
        view: The cluster.
        now_ns: Time of the view, nanoseconds since the epoch.
        due: Classes to read; new ones, and ones whose counts were lost, are read in any case.
        before: The records so far.
    """
    read = {
        each.cls: _read(each, now_ns, known)
        for each in view.classes
        if (known := before.get(each.cls)) is None
        or known.recalled
        or each.finished < known.finished
        or each.cls in due
    }
    return latest({**before, **read}) if read else before


def latest(records: Mapping[RequestClass, ClassRecord]) -> Mapping[RequestClass, ClassRecord]:
    """Return at most `CLASSES_MAX` records, the latest ones."""
    if len(records) <= CLASSES_MAX:
        return records
    return dict(sorted(records.items(), key=lambda item: item[1].at_ns)[-CLASSES_MAX:])


def _read(view: ClassView, now_ns: int, known: ClassRecord | None) -> ClassRecord:
    return ClassRecord(
        at_ns=now_ns,
        finished=view.finished,
        mean_prompt_tokens=view.mean_prompt_tokens,
        var_prompt_tokens=view.var_prompt_tokens,
        mean_max_tokens=view.mean_max_tokens,
        var_max_tokens=view.var_max_tokens,
        lengths=view.lengths,
        former=None if known is None else _former(view, known),
    )


def _former(view: ClassView, known: ClassRecord) -> LengthCounts | None:
    """Return the answers that the store does not count."""
    if view.finished < known.finished:
        return limited(known.counts, FORMER_ANSWERS_MAX)
    # The store has kept its counts, and what was recalled is among them.
    return None if known.recalled else known.former


def aged_weight(age_s: float) -> float:
    """Return the largest weight of answers of that age."""
    return FORMER_ANSWERS_MAX * math.pow(0.5, max(0.0, age_s) / HALF_LIFE_S)


def limited(counts: LengthCounts, answers_max: float) -> LengthCounts:
    """Return counts scaled down to at most that many answers."""
    return counts.scaled(min(1.0, answers_max / max(1e-9, counts.answers)))

"""What bursts on an engine teach about the next one; pure."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from benchmarks.fidelity_client import Answer
from benchmarks.fidelity_workload import Planned
from qlm.domain.fleet import ServedWork
from qlm.rct_estimator.correction import Correction
from qlm.rct_estimator.profile import Profile
from qlm.rct_estimator.served_work import served_work_s

Floats = npt.NDArray[np.float64]

READING_S = 5.0
"""Production learns an instance's speed from stretches of so many busy seconds at least."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What earlier bursts on the same engine taught beyond its profile.

    Attributes:
        correction: How much slower it is, as production learns it.
        intakes_s: How much later than forecast the first batch of each burst got its first tokens: the
            engine's server reads so many requests side by side before it hands over any.
    """

    correction: Correction = field(default_factory=Correction)
    intakes_s: tuple[float, ...] = ()

    @property
    def intake_s(self) -> float:
        """The mean of them; 0 before any burst."""
        return statistics.fmean(self.intakes_s) if self.intakes_s else 0.0

    def after(
        self, profile: Profile, planned: Sequence[Planned], answers: Sequence[Answer], told: Floats
    ) -> "Learned":
        """Learn from a burst.

        Args:
            profile: Of the engine.
            planned: The requests, in order of sending.
            answers: To them.
            told: What this said of their first tokens beforehand.
        """
        correction, places = self.correction, profile.seqs_max
        for work, started in readings(planned, answers, places):
            predicted_s = served_work_s(profile, work, started=started)
            correction = correction.observed(predicted_s, work.busy_s)
        start_s = min(answer.sent_s for answer in answers)
        first_s = statistics.fmean(answer.token_s[0] for answer in answers[:places]) - start_s
        # They were computed together, so that the last one's forecast is that of all.
        intake_s = first_s - (float(told[places - 1]) - self.intake_s)
        return Learned(correction, (*self.intakes_s, max(0.0, intake_s)))


def readings(
    planned: Sequence[Planned], answers: Sequence[Answer], places: int
) -> list[tuple[ServedWork, int]]:
    """Cut the time in which all places are taken into readings as production takes them.

    Args:
        planned: The requests of a burst, in order of sending.
        answers: To them.
        places: Requests that run at once.

    Returns:
        What was done in each, and how many requests got their place in it; none if it is too short.
    """
    begun = np.array([answer.token_s[0] for answer in answers])
    ended = np.array([answer.token_s[-1] for answer in answers])
    prompts = np.array([one.prompt_tokens for one in planned])
    token_s = np.array([at_s for answer in answers for at_s in answer.token_s])
    start_s, end_s = float(begun[:places].max()), float(begun.max())
    edges = np.linspace(start_s, end_s, int((end_s - start_s) / READING_S) + 1)
    found = []
    for low_s, high_s in itertools.pairwise(edges):
        starts = (begun > low_s) & (begun <= high_s)
        work = ServedWork(
            busy_s=float(high_s - low_s),
            request_s=places * float(high_s - low_s),
            prompt_tokens=int(prompts[starts].sum()),
            output_tokens=int(((token_s > low_s) & (token_s <= high_s)).sum()),
            ended=int(((ended > low_s) & (ended <= high_s)).sum()),
        )
        found.append((work, int(starts.sum())))
    return found

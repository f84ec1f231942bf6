"""Learning from bursts on an engine for the next one; pure."""

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
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.served_work import served_work_s

Floats = npt.NDArray[np.float64]

READING_S = 5.0
"""Shortest busy time from which production learns an instance's speed."""


@dataclass(frozen=True, slots=True)
class Learned:
    """State learned from earlier bursts on the same engine, in addition to its profile.

    Attributes:
        correction: Correction of its speed, as production learns it.
        intakes_s: Delay of the first batch's first tokens over the forecast, by burst: the engine's server
            reads all requests of a burst side by side before it passes any on.
    """

    correction: Correction = field(default_factory=Correction)
    intakes_s: tuple[float, ...] = ()

    @property
    def intake_s(self) -> float:
        """Mean of these delays; 0 before any burst."""
        return statistics.fmean(self.intakes_s) if self.intakes_s else 0.0

    def after(
        self, profile: Profile, planned: Sequence[Planned], answers: Sequence[Answer], forecast_s: Floats
    ) -> "Learned":
        """Return the state after a burst.

        Args:
            profile: Profile of the engine.
            planned: Requests in order of sending.
            answers: Their answers.
            forecast_s: Their forecast first-token times.
        """
        correction, places = self.correction, profile.seqs_max
        prompts = np.array([one.prompt_tokens for one in planned], dtype=np.float64)
        prompt_cv2 = float(prompts.var() / prompts.mean() ** 2)
        for work, started in readings(planned, answers, places):
            predicted_s = served_work_s(profile, work, started=started, prompt_cv2=prompt_cv2)
            correction = correction.observed(predicted_s, work.busy_s)
        start_s = min(answer.sent_s for answer in answers)
        first_s = statistics.fmean(answer.token_s[0] for answer in answers[:places]) - start_s
        # The first batch is computed together, so that the forecast of its last request holds for all.
        intake_s = first_s - (float(forecast_s[places - 1]) - self.intake_s)
        return Learned(correction, (*self.intakes_s, max(0.0, intake_s)))


def readings(
    planned: Sequence[Planned], answers: Sequence[Answer], places: int
) -> list[tuple[ServedWork, int]]:
    """Cut the time with a full batch into readings as in production.

    Args:
        planned: Requests of a burst in order of sending.
        answers: Their answers.
        places: Batch slots.

    Returns:
        Work of each reading, with the number of requests that started in it; none if the time is too short.
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

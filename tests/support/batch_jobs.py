"""Requests of a toy engine, and what each lived through."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from qlm.agents.batching.view import FIRST_TOKEN_ONLY, NO_READER, Pace, Place
from qlm.domain.streaming.experience import qoe, qoe_star
from qlm.domain.streaming.reader import Reader
from qlm.domain.streaming.timeline import Timeline
from qlm.domain.streaming.token_value import effective_tokens
from support.batch_views import Row


@dataclass(frozen=True)
class Job:
    """One request; times are seconds from the start."""

    id: str
    prompt: int
    answer: int
    arrival_s: float = 0.0
    reader: Reader | None = None
    deadline_s: float = inf
    rank: int = 0


FIGURE_4: Final = (
    Job("1", prompt=90, answer=10, reader=Reader(1.0, 1.25)),
    Job("2", prompt=90, answer=10, reader=Reader(1.0, 1.25)),
    Job("3", prompt=180, answer=10, reader=Reader(2.0, 5.0)),
    Job("4", prompt=90, answer=20, reader=Reader(2.0, 5.0)),
)
"""The four requests of Andes' figure 4; tests give them memory (400 tokens) and speed (0.2 s) of ours."""


def pace_of(jobs: Sequence[Job]) -> Pace:
    """Return what a host knows before the first iteration if it has seen requests like these before."""
    answers = [job.answer for job in jobs]
    return Pace(
        step_s=0.0,
        prompt_mean=sum(job.prompt for job in jobs) / len(jobs),
        answer_mean=sum(answers) / len(jobs),
        answer_square_mean=sum(answer**2 for answer in answers) / len(jobs),
        life_s=0.0,
        preemptions=0,
        requests=0,
    )


@dataclass(eq=False)
class Played:
    """What a request lived through; times of its tokens are seconds from its arrival."""

    job: Job
    times_s: list[float] = field(default_factory=list)
    preemptions: int = 0
    place: Place = Place.OUTSIDE
    computed: int = 0
    host_tokens: int = 0
    loaded_s: float = 0.0
    timeline: Timeline = field(init=False)

    def __post_init__(self) -> None:
        self.timeline = Timeline(self.job.reader or Reader(inf, inf))

    @property
    def ended(self) -> bool:
        return len(self.times_s) == self.job.answer

    @property
    def decodes(self) -> bool:
        """All but its last token is computed, and its prompt has given a first one."""
        return bool(self.times_s) and self.computed >= self.text - 1

    @property
    def end_s(self) -> float:
        """When the last token came, seconds from the start."""
        return self.job.arrival_s + self.times_s[-1]

    @property
    def text(self) -> int:
        return self.job.prompt + len(self.times_s)

    @property
    def qoe(self) -> float:
        return qoe(self.timeline)

    @property
    def qoe_star(self) -> float:
        return qoe_star(self.timeline)

    @property
    def effective_tokens(self) -> float:
        return effective_tokens(self.times_s, self.timeline.reader.tokens_per_s)


def row_of(each: Played, place: Place, answer_mean: float) -> Row:
    """Return the request as a policy sees it; the tokens to come are what the mean answer leaves."""
    job, line = each.job, each.timeline
    rate, ttft_s = (job.reader.tokens_per_s, job.reader.ttft_s) if job.reader else (NO_READER, inf)
    read = bool(each.times_s) and rate not in (NO_READER, FIRST_TOKEN_ONLY)
    generated = len(each.times_s)
    return Row(
        job.id,
        place=place,
        arrival_s=job.arrival_s,
        prompt=job.prompt,
        generated=generated,
        host_tokens=each.host_tokens,
        preemptions=each.preemptions,
        rate=rate,
        ttft_s=ttft_s,
        read_end_s=job.arrival_s + line.read_end_s if read else None,
        late_s=line.late_s if job.reader else 0.0,
        late_sum_s=line.late_sum_s if job.reader else 0.0,
        deadline_s=job.deadline_s,
        rank=job.rank,
        left_mean=max(answer_mean - generated, answer_mean / 2),
        left_sd=answer_mean,
    )

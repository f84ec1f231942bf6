"""Requests of a toy engine, and what each lived through."""

from dataclasses import dataclass, field
from math import inf

from qlm.agents.batching.view import FIRST_TOKEN_ONLY, NO_READER, Place
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


@dataclass
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

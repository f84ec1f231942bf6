"""Builders of what a decision about a visit is made from."""

from qlm.agents.core.scheduling.visits.backlog import NO_BACKLOG, Backlog, HopefulRequests, Patience
from qlm.agents.core.scheduling.visits.candidate import Candidate
from qlm.agents.core.scheduling.visits.present import Present
from qlm.agents.core.scheduling.visits.remain import Work
from qlm.domain.ids import ModelId

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")


def requests(
    count: int, first_s: float, last_s: float, *, service_s: float = 0.1, objective_s: float = 30.0
) -> Backlog:
    part = HopefulRequests.of(
        priority=0,
        requests=count,
        first_s=first_s,
        last_s=last_s,
        service_s=service_s,
        objective_s=objective_s,
    )
    return Backlog([] if part is None else [part])


def other(
    model: ModelId,
    backlog: Backlog,
    *,
    swap_s: float = 1.0,
    arrivals_rps: float = 0.0,
    waiting: int | None = None,
    priority: int = 0,
) -> Candidate:
    hopeful = round(sum(part.requests for part in backlog.parts))
    return Candidate(
        model=model,
        backlog=backlog,
        swap_s=swap_s,
        arrivals_rps=arrivals_rps,
        waiting=hopeful if waiting is None else waiting,
        priority=priority,
    )


def work(answer_s: float, *, refill_s: float = float("inf")) -> Work:
    return Work(answer_s=answer_s, service_s=0.1, refill_s=refill_s)


def deferred(
    count: int, waits_s: float, *, weight: float = 0.2, objective_s: float | None = None
) -> HopefulRequests | None:
    return HopefulRequests.deferred(
        Patience(batch_s=120.0, weight=weight),
        priority=0,
        requests=count,
        waits_s=waits_s,
        spread_s=0.0,
        service_s=0.1,
        objective_s=objective_s,
    )


def backlog_of(*parts: HopefulRequests | None) -> Backlog:
    return Backlog(part for part in parts if part is not None)


def present(**values: object) -> Present:
    return Present(**{"backlog": NO_BACKLOG, "back_s": 1.0, "awake_s": 100.0, **values})  # type: ignore[arg-type]

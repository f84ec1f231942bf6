"""Requests for tests: one plain example, and what differs from it."""

from typing import Any

from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId, RequestId
from qlm.domain.request import Answer, AnswerKind, Request
from qlm.domain.sampling import Sampling
from qlm.domain.slo import BatchSlo, DeadlineSlo, OnMiss, Slo


def a_request(
    id: str = "r1",
    *,
    model: str = "m",
    deadline_ms: float | None = None,
    arrival_ns: int = 0,
    prompt_tokens: int = 4,
    max_tokens: int = 8,
    priority: int = 0,
    on_miss: OnMiss = OnMiss.SERVE,
    detached: bool = False,
    **sampling: Any,
) -> Request:
    """Build a greedy request of four prompt and up to eight output tokens; batch unless it has a deadline."""
    slo: Slo = BatchSlo() if deadline_ms is None else DeadlineSlo(deadline_ms=deadline_ms)
    return Request(
        id=RequestId(id),
        cls=RequestClass(ModelId(model), slo.label(), priority=priority, target_ms=deadline_ms),
        tenant="tests",
        slo=slo,
        on_miss=on_miss,
        arrival_ns=arrival_ns,
        prompt_tokens=prompt_tokens,
        prompt_ids=tuple(range(1, prompt_tokens + 1)),
        prompt_tail=tuple(range(1, prompt_tokens + 1))[-8:],
        sampling=Sampling(max_tokens=max_tokens, temperature=0.0, **sampling),
        answer=Answer(kind=AnswerKind.COMPLETION),
        detached=detached,
    )

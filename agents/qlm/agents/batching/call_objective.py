"""What an engine's batch policy learns of a request with its call."""

from math import inf
from typing import Final

from qlm.agents.batching.readers import ReaderColumns
from qlm.domain.ports.engine import CallObjective
from qlm.domain.request import NS_PER_MS, PRIORITY_LIMIT, RequestMetadata
from qlm.domain.slo import DeadlineSlo, ReadingSlo, TokenSlo

_RANK_BITS: Final = 48
"""Milliseconds since the epoch have fewer."""

_NO_DEADLINE: Final = (1 << _RANK_BITS) - 1


def begin_reader(readers: ReaderColumns, row: int, arrival_s: float, objective: CallObjective) -> None:
    """Begin the row of the reader of a call, seconds after the origin of the host's times."""
    readers.begin(
        row,
        arrival_s,
        objective.ttft_s,
        objective.tokens_per_s,
        seen=objective.shown,
        late_s=objective.late_s,
    )


def call_objective(request: RequestMetadata, shown: int) -> CallObjective:
    """Return the objective of a request that continues after `shown` output tokens.

    A time per output token is a reader of that pace. A deadline of the whole answer may come beside it. The
    tokens shown count as in time: when their reader got them is not known here.
    """
    slo, ttft_s, tokens_per_s, deadline_ns = request.slo, inf, inf, None
    match slo:
        case DeadlineSlo():
            deadline_ns = request.deadline_ns
        case ReadingSlo():
            ttft_s, tokens_per_s = slo.ttft_ms / 1000, slo.tokens_per_s
        case TokenSlo():
            ttft_s, tokens_per_s = slo.ttft_ms / 1000, 1000 / slo.tpot_ms if slo.tpot_ms else 0.0
        case _:
            pass  # batch work
    if (whole_ms := request.extensions.deadline_ms) is not None:
        deadline_ns = request.arrival_ns + round(whole_ms * NS_PER_MS)
    return CallObjective(
        arrival_ns=request.arrival_ns,
        ttft_s=ttft_s,
        tokens_per_s=tokens_per_s,
        deadline_ns=deadline_ns,
        rank=_rank(request),
        shown=shown,
    )


def _rank(request: RequestMetadata) -> int:
    """Return the place by priority, then by the deadline of the class, as virtual queues order groups."""
    due_ms = request.cls.due_ms
    deadline_ms = _NO_DEADLINE if due_ms is None else request.arrival_ns // 1_000_000 + round(due_ms)
    return ((request.cls.priority + PRIORITY_LIMIT) << _RANK_BITS) + min(deadline_ms, _NO_DEADLINE)

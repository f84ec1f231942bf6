"""Whether a request's objective was met, as the gateway saw it."""

from qlm.domain.request import NS_PER_MS, RequestCard
from qlm.domain.slo import BatchSlo, DeadlineSlo, ReadingSlo, TokenSlo


def attained(card: RequestCard, *, first_output_ns: int | None, ended_ns: int, tokens: int) -> bool | None:
    """Judge a request that was answered.

    Args:
        card: The request.
        first_output_ns: When its first token came; None if there was none.
        ended_ns: When its last token came.
        tokens: Output tokens.

    Returns:
        None for batch work, which has no objective.
    """
    match card.slo:
        case BatchSlo():
            return None
        case DeadlineSlo(deadline_ms=deadline_ms):
            return ended_ns - card.arrival_ns <= deadline_ms * NS_PER_MS
        case TokenSlo(ttft_ms=ttft_ms, tpot_ms=tpot_ms):
            pause_ms = tpot_ms
        case ReadingSlo(ttft_ms=ttft_ms, tokens_per_s=tokens_per_s):
            pause_ms = 1000 / tokens_per_s
    first_ns = ended_ns if first_output_ns is None else first_output_ns
    if first_ns - card.arrival_ns > ttft_ms * NS_PER_MS:
        return False
    return pause_ms is None or ended_ns - first_ns <= max(0, tokens - 1) * pause_ms * NS_PER_MS

"""SLO attainment of a request, as measured by the gateway."""

from qlm.domain.request import NS_PER_MS, RequestMetadata
from qlm.domain.slo import BatchSlo, DeadlineSlo, ReadingSlo, TokenSlo


def attained(
    metadata: RequestMetadata, *, first_output_ns: int | None, ended_ns: int, tokens: int
) -> bool | None:
    """Return True if an answered request met its objective; None for batch work, which has none.

    Args:
        metadata: The request.
        first_output_ns: Time of its first token; None if there was none.
        ended_ns: Time of its last token.
        tokens: Number of output tokens.
    """
    match metadata.slo:
        case BatchSlo():
            return None
        case DeadlineSlo(deadline_ms=deadline_ms):
            return ended_ns - metadata.arrival_ns <= deadline_ms * NS_PER_MS
        case TokenSlo(ttft_ms=ttft_ms, tpot_ms=tpot_ms):
            pause_ms = tpot_ms
        case ReadingSlo(ttft_ms=ttft_ms, tokens_per_s=tokens_per_s):
            pause_ms = 1000 / tokens_per_s
    first_ns = ended_ns if first_output_ns is None else first_output_ns
    if first_ns - metadata.arrival_ns > ttft_ms * NS_PER_MS:
        return False
    return pause_ms is None or ended_ns - first_ns <= max(0, tokens - 1) * pause_ms * NS_PER_MS

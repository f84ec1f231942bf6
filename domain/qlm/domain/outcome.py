"""How a request ends: one small set of words, used in answers, records and metrics alike."""

from enum import StrEnum


class Outcome(StrEnum):
    """The end of a request."""

    STOP = "stop"
    """The model ended its answer (end-of-sequence or a stop)."""
    LENGTH = "length"
    """The answer reached max_tokens or the model's context."""
    CANCELLED = "cancelled"
    """The client cancelled it or went away."""
    EXPIRED = "expired"
    """Its deadline passed and it had asked to be dropped then."""
    ENGINE_LOST = "engine_lost"
    """The engine died under a request that cannot be resumed exactly; safe to retry."""
    OUTPUT_LOST = "output_lost"
    """Output that a client has seen, or waits for, is no longer known to anyone; safe to retry."""
    FAILED = "failed"
    """The engine refused it, or it was undeliverable."""

    @property
    def ok(self) -> bool:
        """Whether the client got an answer."""
        return self in (Outcome.STOP, Outcome.LENGTH)

    @property
    def retryable(self) -> bool:
        """Whether sending the same request again can help."""
        return self in (Outcome.ENGINE_LOST, Outcome.OUTPUT_LOST, Outcome.EXPIRED)

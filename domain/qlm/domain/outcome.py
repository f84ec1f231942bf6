"""Outcomes of requests: the same words in answers, records and metrics."""

from enum import StrEnum


class Outcome(StrEnum):
    """Final state of a request."""

    STOP = "stop"
    """The model ended its answer (end-of-sequence or a stop)."""
    LENGTH = "length"
    """The answer reached max_tokens or the model's context."""
    CANCELLED = "cancelled"
    """The client cancelled the request or disconnected."""
    EXPIRED = "expired"
    """The deadline passed, and the request asked to be dropped then."""
    ENGINE_LOST = "engine_lost"
    """The engine died during a request that cannot be resumed exactly, and to generate it again gave other
    tokens; safe to retry."""
    OUTPUT_LOST = "output_lost"
    """Output that a client has received, or what the store held of its prompt, was lost; safe to retry."""
    REFUSED = "refused_by_engine"
    """The engine refused the request for good; a retry cannot help."""
    FAILED = "failed"
    """The request could not be served, for example because its engines kept failing."""

    @property
    def ok(self) -> bool:
        """True if the client got an answer."""
        return self is Outcome.STOP or self is Outcome.LENGTH

    @property
    def retryable(self) -> bool:
        """True if a retry of the same request can help."""
        return self in (Outcome.ENGINE_LOST, Outcome.OUTPUT_LOST, Outcome.EXPIRED)

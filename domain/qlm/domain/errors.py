"""The errors QLM raises on purpose; each says what was wrong, the value, and what was expected."""

from qlm.domain.shown import shown


class QlmError(Exception):
    """Base of every error that QLM raises on purpose."""


class InvalidValueError(QlmError, ValueError):
    """A value breaks an invariant of the domain.

    Attributes:
        field: Where the value was found, as the user would write it (`slo.deadline_ms`).
        value: The offending value.
        expected: What would have been accepted.
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field} is {shown(value)}; expected {expected}")
        self.field = field
        self.value = value
        self.expected = expected


class BrokerUnavailableError(QlmError):
    """The broker cannot be reached or did not confirm in time; nothing is known to be stored."""


class DeliveryLostError(QlmError):
    """A delivery is no longer ours (its connection is gone); the broker will deliver it again."""


class StoreUnavailableError(QlmError):
    """The shared state cannot be reached."""


class StoreEmptiedError(QlmError):
    """The store was emptied since: what was asked of its former content was not done."""

    def __init__(self, incarnation: int) -> None:
        super().__init__(f"the store was emptied: it is not of incarnation {incarnation} any more")


class StoreCorruptError(QlmError):
    """What the store or broker returned cannot be read (for example, a newer schema version)."""


class NotLeadingError(QlmError):
    """Another controller leads, or none does: what was asked under this term was not done."""


class EngineUnavailableError(QlmError):
    """The engine is down, refused the call, or broke a stream before its end."""


class EngineRefusedError(QlmError):
    """The engine understood one request and refused it for good (HTTP 4xx); retrying cannot help."""

"""Errors that QLM raises on purpose; messages name the field, its value and the expectation."""

from qlm.domain.shown import shown


class QlmError(Exception):
    """Base of every error that QLM raises on purpose."""


class InvalidValueError(QlmError, ValueError):
    """A value breaks an invariant of the domain.

    Attributes:
        field: Path of the value as a user writes it (`slo.deadline_ms`).
        value: The invalid value.
        expected: Description of valid values.
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field} is {shown(value)}; expected {expected}")
        self.field = field
        self.value = value
        self.expected = expected


def extra_hint(extra: str) -> str:
    """Return how to install an extra, from a clone or from a wheel: no index has the package."""
    return f"pip install -e '.[{extra}]' in a clone of QLM, or pip install 'WHEEL[{extra}]'"


class UnavailableError(QlmError):
    """A server that a part depends on is away; trying again later helps."""


class BrokerUnavailableError(UnavailableError):
    """The broker cannot be reached or did not confirm in time; nothing is known to be stored."""


class DeliveryLostError(QlmError):
    """The connection of a delivery is gone; the broker will deliver the message again."""


class StoreUnavailableError(UnavailableError):
    """The shared state cannot be reached, or cannot be written; trying again later helps."""


class StorageUnavailableError(UnavailableError):
    """The storage of files and batches cannot be reached, or refuses; trying again later may help."""


class StoreEmptiedError(QlmError):
    """The store was emptied; an operation on its former content was not done."""

    def __init__(self, incarnation: int) -> None:
        super().__init__(f"the store was emptied: it is not of incarnation {incarnation} any more")


class UndecodableDataError(QlmError):
    """Data from the store or broker cannot be decoded (for example, of another schema version)."""


class DamagedDataError(UndecodableDataError):
    """Stored data is damaged; opening it needs the consent to go on without what is lost."""


class StoreDataError(UndecodableDataError):
    """The shared state is damaged where one operation needs it; trying again does not help.

    Other operations work: it costs what asked for this one.
    """


class NotLeadingError(QlmError):
    """The term is not that of the present leader; the operation was not done."""


class InstanceHeldError(QlmError):
    """Another agent has the lease of the instance."""


class DeploymentTakenError(QlmError):
    """A server belongs to another deployment of the same name; to use it would lose requests of both."""


class EngineUnavailableError(UnavailableError):
    """The engine is down, refused the call, or broke a stream before its end."""


class EngineGarbledError(EngineUnavailableError):
    """The engine sent what no engine sends: its answer cannot be read."""


class MediaLostError(QlmError):
    """The store has the images, sound or video of a prompt no more: it was emptied since."""


class EngineRefusedError(QlmError):
    """The engine refused one request for good, as by status 400; retrying cannot help."""

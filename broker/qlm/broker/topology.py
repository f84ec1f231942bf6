"""Names and arguments of the broker's queues; class queues are named by `RequestClass.queue`.

These names begin with `qlm.`. In RabbitMQ the name of the deployment takes the place of `qlm` (`queue_in`):
deployments of different names share a vhost without touching each other's queues.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.group import queue_part
from qlm.domain.ids import InstanceId, QueueName

QUEUE_NAME_BYTES_MAX: Final = 255
"""Longest queue name that AMQP 0-9-1 can carry (a short string)."""

DEAD: Final = QueueName("qlm.dead")
"""Messages that cannot be decoded, each with the reason (`codec.encode_dead_letter`)."""

REGISTRY: Final = QueueName("qlm.registry")
"""Names of all queues published to, one message each; AMQP itself cannot list queues."""

DEPLOYMENT: Final = QueueName("qlm.deployment")
"""The mark of the deployment that uses the queues, in one message; not in the registry."""

PROBE: Final = QueueName("qlm.probe")
"""The latest message that showed that messages can be stored; not in the registry."""

_OURS: Final = "qlm."
_LOCK_SUFFIX: Final = ".lock"
_HOLD_PREFIX: Final = "qlm.hold."
_ESCAPED: Final = re.compile(r"(?:~[0-9a-f]{2})+")


def queue_in(deployment: str, queue: str) -> str:
    """Return the name in RabbitMQ of a queue of a deployment; for the deployment `qlm` it is the same."""
    return f"{deployment}.{queue.removeprefix(_OURS)}" if queue.startswith(_OURS) else queue


def hold_queue(instance: InstanceId) -> QueueName:
    """Return the name of the queue with the messages of requests that an instance runs or has parked.

    Raises:
        InvalidValueError: The instance's name is empty or too long for a queue name.
    """
    name = _HOLD_PREFIX + queue_part(instance)
    if not instance or len(name) > QUEUE_NAME_BYTES_MAX:
        raise InvalidValueError(
            "instance", instance, f"a name whose queue has at most {QUEUE_NAME_BYTES_MAX} bytes"
        )
    return QueueName(name)


def lock_of(queue: QueueName) -> QueueName:
    """Return the name of the exclusive queue that locks `queue` for one reader of all its messages.

    Raises:
        InvalidValueError: The queue's name leaves no room for it.
    """
    if len(queue.encode()) > QUEUE_NAME_BYTES_MAX - len(_LOCK_SUFFIX):
        longest = QUEUE_NAME_BYTES_MAX - len(_LOCK_SUFFIX)
        raise InvalidValueError("queue", queue, f"a name of at most {longest} bytes, to look at its messages")
    return QueueName(queue + _LOCK_SUFFIX)


def hold_instance(queue: QueueName) -> InstanceId | None:
    """Return the instance of a hold queue; None if `queue` is another one."""
    if not queue.startswith(_HOLD_PREFIX):
        return None
    escaped = queue.removeprefix(_HOLD_PREFIX)
    try:
        return InstanceId(_ESCAPED.sub(lambda m: bytes.fromhex(m.group().replace("~", "")).decode(), escaped))
    except UnicodeDecodeError:  # QLM escapes texts only
        return None


class QueueType(StrEnum):
    """Type of a RabbitMQ queue."""

    CLASSIC = "classic"
    """On one node; a returned message gets its old place."""
    QUORUM = "quorum"
    """Replicated; a returned message may go to the back (RabbitMQ 3.10) or near the front (4.x)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueKind:
    """Declaration of RabbitMQ queues; all processes of a cluster must use the same.

    Attributes:
        type: Type of all queues.
        delivery_limit: Returns after which a quorum queue drops a message; RabbitMQ 4 defaults to 20,
            so give -1 (unlimited) there (RabbitMQ 4.0 release notes). None leaves the server's default.
    """

    type: QueueType = QueueType.CLASSIC
    delivery_limit: int | None = None

    def __post_init__(self) -> None:
        if self.delivery_limit is not None and self.type is not QueueType.QUORUM:
            raise InvalidValueError(
                "delivery_limit", self.delivery_limit, "none, for a classic queue has no limit"
            )

    def arguments(self) -> dict[str, str | int]:
        """Return the arguments of queue.declare."""
        arguments: dict[str, str | int] = {"x-queue-type": self.type.value}
        if self.delivery_limit is not None:
            arguments["x-delivery-limit"] = self.delivery_limit
        return arguments

    def arguments_of(self, queue: QueueName) -> dict[str, str | int]:
        """Return the arguments of queue.declare for a queue that messages are published to."""
        return self.arguments() | ({"x-max-length": 1} if queue == PROBE else {})

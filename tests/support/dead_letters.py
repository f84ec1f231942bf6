"""Dead letters for tests, as agents and the controller write them."""

from qlm.broker.codec import DeadLetter, encode_dead_letter, encode_request
from qlm.broker.topology import DEAD
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Broker
from qlm.domain.request import Request

UNREADABLE = b'{"schema": 999'
"""No request, nor any JSON."""


async def move_to_dead_letters(
    broker: Broker, message: Request | bytes, *, at_s: float = 1000.0, reason: str = "why"
) -> None:
    """Put a message into the dead-letter queue."""
    body = message if isinstance(message, bytes) else encode_request(message)
    queue = QueueName("qlm.class.x") if isinstance(message, bytes) else message.cls.queue
    letter = DeadLetter(reason=reason, queue=queue, at_ns=round(at_s * 1e9), body=body)
    await broker.publish(DEAD, encode_dead_letter(letter))

"""The messages of a queue while a controller has all of them."""

from collections.abc import Sequence
from typing import cast

from qlm.controller.shell.taken_messages import BATCH, TakenMessages
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Broker, Delivery

QUEUE = QueueName("q")


class Tag:
    """A handle that counts how often any is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Tag.compared += 1
        return self is other

    def __hash__(self) -> int:
        return id(self)


class Handing:
    """A broker of one queue; it notes what is acknowledged and returned."""

    def __init__(self, messages: int) -> None:
        self.left = [Delivery(QUEUE, Tag(), str(number).encode(), False) for number in range(messages)]
        self.acknowledged: list[int] = []
        self.returned: list[int] = []

    async def get(self, queue: QueueName, most: int) -> Sequence[Delivery]:
        batch, self.left = self.left[:most], self.left[most:]
        return batch

    async def ack(self, delivery: Delivery) -> None:
        self.acknowledged.append(int(delivery.body))

    async def requeue(self, delivery: Delivery) -> None:
        self.returned.append(int(delivery.body))


async def test_removals_do_not_search_the_messages_and_the_others_keep_their_order() -> None:
    """Half of a queue is cancelled: searching took seconds of the event loop for 6000 of 12000 messages."""
    broker = Handing(2 * BATCH)
    Tag.compared = 0
    async with TakenMessages(cast(Broker, broker), QUEUE) as taken:
        messages = [delivery for part in taken.parts() for delivery, _ in part]
        for delivery in messages[BATCH:]:
            await taken.remove(delivery)
        assert await taken.keep_first(messages[3], messages[5])
    assert Tag.compared == 0
    assert broker.acknowledged == [*range(BATCH, 2 * BATCH), 5]
    assert broker.returned == [3, *(n for n in reversed(range(BATCH)) if n not in (3, 5))]
    assert taken.removed == BATCH + 1

"""What an agent writes down one after the other: acknowledgements, returns, hand-overs, notes.

One worker keeps their order. What the store or the broker cannot take now is tried again until it can;
what is no longer ours (a lost delivery) is left to the next holder.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from qlm.broker import codec
from qlm.broker.topology import DEAD, hold_queue
from qlm.domain.actions import (
    Ack,
    Action,
    DeadLetter,
    Demote,
    HandOver,
    NoteParked,
    NoteResumed,
    Renew,
    Return,
)
from qlm.domain.errors import BrokerUnavailableError, DeliveryLostError, StoreUnavailableError
from qlm.domain.ids import InstanceId, QueueName
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import Store

log = logging.getLogger("qlm.agents")

RETRY_S: Final = 0.5
"""Pause before a store or broker that was away is tried again."""

HOLD_PULL_MAX: Final = 64
"""Messages taken from the hold queue at a time."""


class Bookkeeper:
    """The worker and its queue; `run` works until cancelled."""

    def __init__(self, instance: InstanceId, broker: Broker, store: Store, clock: Clock) -> None:
        self._instance = instance
        self._broker = broker
        self._store = store
        self._clock = clock
        self._hold = hold_queue(instance)
        self._actions: asyncio.Queue[Action] = asyncio.Queue()
        self._published = False

    def put(self, action: Action) -> None:
        """Write this down after everything put before."""
        self._actions.put_nowait(action)

    async def run(self) -> None:
        """Write down what comes, in order."""
        while True:
            action, self._published = await self._actions.get(), False
            while True:
                if await self._done(action):
                    break
                await asyncio.sleep(RETRY_S)
            self._actions.task_done()

    async def written(self) -> None:
        """Wait until everything put so far is written down."""
        await self._actions.join()

    async def held_back(self) -> Sequence[Delivery]:
        """Take messages that others, or we ourselves, put into our hold queue."""
        return await self._broker.get(self._hold, HOLD_PULL_MAX)

    async def _done(self, action: Action) -> bool:
        """Carry out one bookkeeping action; False if it must be tried again."""
        try:
            await self._write(action)
        except DeliveryLostError:
            # The broker hands the message out again; its lease says what to do with it.
            log.debug("%s: delivery lost on %s", self._instance, type(action).__name__)
        except (BrokerUnavailableError, StoreUnavailableError) as error:
            log.warning("%s: %s waits: %s", self._instance, type(action).__name__, error)
            return False
        return True

    async def _write(self, action: Action) -> None:  # noqa: C901 - one flat table of actions
        match action:
            case Ack(delivery=delivery):
                await self._broker.ack(delivery)
            case NoteParked(id=id, epoch=epoch, why=why):
                await self._store.park(id, epoch, why)
            case NoteResumed(id=id, epoch=epoch):
                await self._store.resume(id, epoch)
            case Return(id=id, epoch=epoch, delivery=delivery, home=home, why=why):
                if epoch is not None:
                    await self._store.release(id, epoch, why)
                if delivery.queue == home:
                    await self._broker.requeue(delivery)
                else:
                    # From our hold queue, where only we look, to where others pull.
                    await self._move(delivery, home, delivery.body)
            case Demote():
                await self._demote(action)
            case HandOver(delivery=delivery, holder=holder):
                await self._move(delivery, hold_queue(holder.instance), delivery.body)
            case Renew(delivery=delivery):
                await self._move(delivery, self._hold, delivery.body)
            case DeadLetter(delivery=delivery, reason=reason):
                letter = codec.DeadLetter(
                    reason=reason, queue=delivery.queue, at_ns=self._clock.now_ns(), body=delivery.body
                )
                await self._move(delivery, DEAD, codec.encode_dead_letter(letter))

    async def _move(self, delivery: Delivery, queue: QueueName, body: bytes) -> None:
        await self._publish(queue, body)
        await self._broker.ack(delivery)

    async def _publish(self, queue: QueueName, body: bytes) -> None:
        """Publish the message of the present action, but not again when the action is tried again."""
        if not self._published:
            await self._broker.publish(queue, body)
            self._published = True

    async def _demote(self, action: Demote) -> None:
        # Published before the store says where it waits: nobody is to look for it in vain.
        request = action.request
        await self._publish(request.cls.queue, codec.encode_request(request))
        await self._store.demote(request.card(), action.epoch, action.why)
        await self._broker.ack(action.delivery)

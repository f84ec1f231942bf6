"""Side effects of an agent, executed one after the other: acks, returns, moves, and reports to the store."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final

from qlm.agents.core.side_effects import Services, SideEffect, calls
from qlm.broker import codec
from qlm.broker.topology import DEAD
from qlm.domain.actions import Ack, Demote, RenewDelivery, Return
from qlm.domain.errors import DeliveryLostError, UndecodableDataError
from qlm.domain.ids import InstanceId, QueueName
from qlm.domain.ports.agent_store import AgentStore
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.ports.clock import Clock
from qlm.domain.request import Request
from qlm.domain.shell.faults import FaultKind, FaultLog

log = logging.getLogger("qlm.agents")

RETRY_S: Final = 0.5
"""Pause before an operation is retried while the store or the broker is unavailable."""


TRIES_MAX: Final = 3
"""Failures of one effect for another reason after which it is given up."""

TRIES_AGAIN: Final = 2
"""The same while the last effect of its type was given up."""


class SideEffects:
    """Queue of side effects with one worker, which keeps their order; `run` works until cancelled.

    While an effect waits, acknowledgements behind it go ahead: what it waits for may be memory or disk that
    only they free, since RabbitMQ takes no message without.

    An effect is retried until it succeeds. One whose delivery is lost is dropped: the broker delivers the
    message again, and its lease says what to do with it.

    One that a defect keeps failing is given up, which costs its request at most, and the agent goes on. A
    message that is not acknowledged is not lost: the broker delivers it again when the connection of this
    agent closes, or its time for an acknowledgement is over. Until then no agent can pull it, and the defect
    does not come back with it.
    """

    def __init__(
        self, instance: InstanceId, broker: Broker, store: AgentStore, clock: Clock, faults: FaultLog
    ) -> None:
        self._instance = instance
        self._broker = broker
        self._clock = clock
        self._faults = faults
        self._effects: asyncio.Queue[SideEffect] = asyncio.Queue()
        self._published = False
        self._tries = 0
        self._kept: Delivery | None = None
        self._renewed: Delivery | None = None
        self._acks: dict[int, Ack] = {}
        self._ahead: set[int] = set()
        self._broken: set[type[SideEffect]] = set()
        self._reported: set[type[SideEffect]] = set()
        self._services: Services[Awaitable[object]] = Services(
            park=store.park,
            resume=store.resume,
            release=store.release,
            demote=store.demote,
            ack=broker.ack,
            requeue=broker.requeue,
            copy=lambda delivery, queue: self._publish(queue, delivery.body),
            move=lambda delivery, queue: self._move(delivery, queue, delivery.body),
            publish=self._publish_request,
            dead_letter=self._dead_letter,
        )

    def put(self, effect: SideEffect) -> None:
        """Execute an effect after all earlier ones."""
        if isinstance(effect, Ack) and effect.delivery != self._renewed:
            self._acks[id(effect)] = effect
        self._renewed = effect.other if isinstance(effect, RenewDelivery) else None
        self._effects.put_nowait(effect)

    async def run(self) -> None:
        """Execute effects as they come, in order."""
        while True:
            effect, self._published, self._tries = await self._effects.get(), False, 0
            self._acks.pop(id(effect), None)
            if id(effect) in self._ahead:
                self._ahead.discard(id(effect))
            else:
                await self._until_executed(effect)
            self._effects.task_done()

    async def _until_executed(self, effect: SideEffect) -> None:
        while not await self._executed(effect):
            if not self._tries:  # it waits for a server, and not because of a defect
                await self._acknowledge()
            await asyncio.sleep(RETRY_S)

    async def _acknowledge(self) -> None:
        """Execute the acknowledgements behind an effect that waits, up to one that cannot be."""
        for key, ack in tuple(self._acks.items()):
            try:
                await self._services.ack(ack.delivery)
            except DeliveryLostError:
                log.debug("%s: delivery lost on Ack", self._instance)
            except Exception:  # its turn comes
                return
            del self._acks[key]
            self._ahead.add(key)

    async def finished(self) -> None:
        """Wait until all effects put so far are executed."""
        await self._effects.join()

    async def _executed(self, effect: SideEffect) -> bool:
        """Execute one effect; False if it must be retried."""
        kept, self._kept = self._kept, None
        if kept is not None and isinstance(effect, Ack) and effect.delivery == kept:
            # Of two messages of a request one was to be renewed, and perhaps it is lost: keep the other.
            return True
        try:
            for call in calls(effect, self._instance, self._services):
                await self._unless_damaged(effect, call)
        except DeliveryLostError:
            log.debug("%s: delivery lost on %s", self._instance, type(effect).__name__)
        except Exception as error:
            if self._is_away(effect, error):
                return False
            self._tries += 1
            # A defect that has not passed is not waited for as long again: others wait behind this effect.
            if self._tries < (TRIES_AGAIN if type(effect) in self._broken else TRIES_MAX):
                return False
            return await self._given_up(effect)
        else:
            self._broken.discard(type(effect))
        return True

    def _is_away(self, effect: SideEffect, error: Exception) -> bool:
        kind = self._faults.note(log, error, "%s: %s waits", self._instance, type(effect).__name__)
        return kind is FaultKind.UNAVAILABLE

    async def _given_up(self, effect: SideEffect) -> bool:
        """Leave an effect undone, but for what others need of its request; False if that must be retried.

        Raises:
            Exception: No part could serve or end the request, unless this agent ends and loses its leases.
        """
        self._broken.add(type(effect))
        if type(effect) not in self._reported:
            self._reported.add(type(effect))
            log.error("%s: %s keeps failing, and is left undone", self._instance, type(effect).__name__)
        try:
            match effect:
                case Return():
                    return await self._returned_in_part(effect)
                case Demote(request=request, epoch=epoch, why=why):
                    # It waits without a message that can be pulled: the controller ends it as `output_lost`.
                    await self._services.release(request.id, epoch, why)
                case RenewDelivery(other=other):
                    self._kept = other
        except Exception as error:
            if not self._is_away(effect, error):
                raise
            return False
        return True

    async def _returned_in_part(self, effect: Return) -> bool:
        """Do the steps of a return that can be done: either of two gets the request out of this agent.

        With its lease only, a message comes back to this agent, which takes it up again. Without its message,
        a request that waits is ended by the controller as `output_lost`.
        """
        done, failure = effect.epoch is None, None
        for step in self._parts_of(effect):
            try:
                await step()
                done = True
            except DeliveryLostError:
                return True
            except Exception as error:
                if self._is_away(effect, error):
                    return False
                failure = error
        if failure is not None and not done:
            raise failure
        return True

    def _parts_of(self, effect: Return) -> Iterator[Callable[[], Awaitable[object]]]:
        """Yield the release of the lease and the return of the message, neither of which needs the other."""
        on, delivery = self._services, effect.delivery
        if effect.epoch is not None:
            yield partial(on.release, effect.id, effect.epoch, effect.why)
        moves = delivery.queue != effect.home
        yield partial(on.move, delivery, effect.home) if moves else partial(on.requeue, delivery)

    async def _unless_damaged(self, effect: SideEffect, call: Awaitable[object]) -> None:
        try:
            await call
        except UndecodableDataError as error:
            # Trying again does not help, and neither the message nor the effects behind this one may wait.
            self._faults.note(log, error, "%s: a step of %s left out", self._instance, type(effect).__name__)

    async def _move(self, delivery: Delivery, queue: QueueName, body: bytes) -> None:
        await self._publish(queue, body)
        await self._broker.ack(delivery)

    async def _dead_letter(self, delivery: Delivery, reason: str) -> None:
        letter = codec.DeadLetter(
            reason=reason, queue=delivery.queue, at_ns=self._clock.now_ns(), body=delivery.body
        )
        await self._move(delivery, DEAD, codec.encode_dead_letter(letter))

    async def _publish_request(self, request: Request) -> None:
        await self._publish(request.cls.queue, codec.encode_request(request))

    async def _publish(self, queue: QueueName, body: bytes) -> None:
        # An effect publishes one message at most; a retry must not publish it again.
        if not self._published:
            await self._broker.publish(queue, body)
            self._published = True

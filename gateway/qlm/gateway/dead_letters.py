"""Dead letters: messages that nobody could serve, looked at, put back into their queues, or deleted."""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from qlm.broker.codec import decode_dead_letter, decode_request
from qlm.broker.topology import DEAD
from qlm.domain.errors import BrokerUnavailableError, DeliveryLostError, StoreCorruptError
from qlm.domain.ids import QueueName, RequestId
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.request import RequestCard, RequestRecord
from qlm.domain.shown import cut
from qlm.gateway.errors import ApiError
from qlm.gateway.gateway import Gateway

_log = logging.getLogger(__name__)

LETTERS_MAX: Final = 2000
"""Letters looked at, from the oldest on. RabbitMQ hands each out and takes it back: 0.7 ms, measured."""

SETTLED_MAX: Final = 64
"""Letters put back or deleted by one call; their bodies, of some MiB at most, are in memory at once."""

BROKER_TIMEOUT_S: Final = 8.0
"""For the whole of a call; less than the 10 s for which `qlm` waits for an answer."""

_GIVE_BACK_TIMEOUT_S: Final = 1.0
_ID_HEX_DIGITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A dead letter as far as it can be read.

    Attributes:
        id: Made of its bytes, so that every gateway finds the same one under it.
        reason: Why nobody could serve it.
        queue: Where it was found; None if even that cannot be read.
        at_ns: Since when it has been here; likewise.
        size_bytes: Length of the message as it was.
        card: The request without its prompt, if the message can be read here.
        unreadable: Why it cannot, else empty.
    """

    id: str
    reason: str
    size_bytes: int
    queue: QueueName | None = None
    at_ns: int | None = None
    card: RequestCard | None = None
    unreadable: str = ""


class Settled(StrEnum):
    """What became of a letter."""

    QUEUED = "queued"
    """Its request waits in its class queue."""
    REMOVED = "removed"
    """Its request runs or has ended: only the letter is gone."""
    DELETED = "deleted"
    """The message is gone for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What became of one letter, and why."""

    letter: Letter
    what: Settled
    why: str = ""

    @property
    def queued(self) -> RequestId | None:
        """The request that was queued again, if one was."""
        return self.letter.card.id if self.letter.card and self.what is Settled.QUEUED else None


Settle = Callable[[Gateway, Letter, bytes], Awaitable[Settlement]]


def read_letter(body: bytes) -> Letter:
    """Read a message of the dead-letter queue, as far as that goes."""
    id = f"dead-{hashlib.sha256(body).hexdigest()[:_ID_HEX_DIGITS]}"
    try:
        letter = decode_dead_letter(body)
    except StoreCorruptError as error:
        return Letter(id=id, reason="this is not a dead letter", size_bytes=len(body), unreadable=str(error))
    card, unreadable = None, ""
    try:
        card = decode_request(letter.body).card()
    except StoreCorruptError as error:
        unreadable = str(error)
    return Letter(
        id=id,
        reason=letter.reason,
        size_bytes=len(letter.body),
        queue=letter.queue,
        at_ns=letter.at_ns,
        card=card,
        unreadable=unreadable,
    )


def has_id(id: str, body: bytes) -> bool:
    """Whether this is the letter with that id, or one of the request with that id."""
    letter = read_letter(body)
    return id == letter.id or (letter.card is not None and id == letter.card.id)


async def look(broker: Broker) -> Sequence[Letter]:
    """Read the first `LETTERS_MAX` letters without taking them; newest first.

    Raises:
        BrokerUnavailableError: The queue cannot be read now.
    """
    async with _in_time():
        letters = await broker.peek(DEAD, read_letter, LETTERS_MAX)
    return sorted(reversed(letters), key=lambda letter: letter.at_ns or 0, reverse=True)


async def settle(
    gateway: Gateway, wanted: Callable[[bytes], bool], how: Settle, limit: int = SETTLED_MAX
) -> Sequence[Settlement]:
    """Take up to `limit` wanted letters and settle each; what fails goes back to where it was.

    Raises:
        ApiError: A letter is refused by `how`; those before it are settled.
        BrokerUnavailableError, StoreUnavailableError: Likewise, for one that cannot be settled now.
    """
    settled: list[Settlement] = []
    async with _in_time():
        letters = list(await gateway.broker.pick(DEAD, wanted, limit, looks_max=LETTERS_MAX))
        try:
            while letters:
                settled.append(await _settle_one(gateway, letters[0], how, settled))
                letters.pop(0)
        finally:
            await _give_back(gateway.broker, letters)
    return settled


async def put_back(gateway: Gateway, letter: Letter, body: bytes) -> Settlement:
    """Queue a letter's request again, and index it; unless it runs or has ended.

    Raises:
        ApiError: The message cannot be read.
    """
    if (card := letter.card) is None:
        message = f"dead letter {letter.id} cannot be put back: {letter.unreadable}; it can only be deleted"
        raise ApiError(status=409, message=message, param="id", code="letter_unreadable")
    record = await gateway.store.record(card.id)
    if record is not None and (why := _settled_elsewhere(record)):
        return Settlement(letter=letter, what=Settled.REMOVED, why=why)
    await gateway.broker.publish(card.cls.queue, decode_dead_letter(body).body)
    await gateway.store.enqueue(card)
    why = "" if card.model in gateway.models else f"it waits, though no model {card.model} is configured here"
    _log.info(
        "dead letter %s: request %s waits again in %s",
        *(letter.id, card.id, card.cls.queue),
        extra={"request_id": card.id},
    )
    return Settlement(letter=letter, what=Settled.QUEUED, why=why)


async def delete(gateway: Gateway, letter: Letter, body: bytes) -> Settlement:
    """Delete a letter for good; its request, if it still waits, is cancelled: nobody else has it."""
    why = ""
    if (card := letter.card) is not None:
        record = await gateway.store.record(card.id)
        if record is not None and not _settled_elsewhere(record):
            await gateway.store.cancel(card.id)
            why = f"request {card.id} is cancelled"
    _log.warning("dead letter %s is deleted (%d bytes): %s", letter.id, letter.size_bytes, letter.reason)
    return Settlement(letter=letter, what=Settled.DELETED, why=why)


def no_letter(id: str) -> ApiError:
    """A 404: there is no such letter among those looked at."""
    message = f"no dead letter {cut(id)}, and none of a request of that id; `qlm requests --dead` lists them"
    return ApiError(status=404, message=message, param="id", code="letter_not_found")


async def _settle_one(
    gateway: Gateway, delivery: Delivery, how: Settle, settled: Sequence[Settlement]
) -> Settlement:
    letter = read_letter(delivery.body)
    if letter.card is not None and letter.card.id in {each.queued for each in settled}:
        why = f"request {letter.card.id} waits already"
        settlement = Settlement(letter=letter, what=Settled.REMOVED, why=why)
    else:
        settlement = await how(gateway, letter, delivery.body)
    try:
        await gateway.broker.ack(delivery)
    except DeliveryLostError as error:
        message = f"the connection was lost before letter {settlement.letter.id} was removed; look again"
        raise BrokerUnavailableError(message) from error
    return settlement


async def _give_back(broker: Broker, letters: Sequence[Delivery]) -> None:
    with contextlib.suppress(TimeoutError):  # they return when the connection ends
        async with asyncio.timeout(_GIVE_BACK_TIMEOUT_S):
            for delivery in letters:
                with contextlib.suppress(DeliveryLostError, BrokerUnavailableError):
                    await broker.requeue(delivery)


def _settled_elsewhere(record: RequestRecord) -> str:
    """Why a request needs no message here; empty if it waits."""
    if record.outcome is not None:
        return f"request {record.card.id} has ended: {record.outcome}"
    if record.lease is not None:
        return f"request {record.card.id} runs on {record.lease.holder.instance}"
    return ""


@contextlib.asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(BROKER_TIMEOUT_S):
            yield
    except TimeoutError as error:
        raise BrokerUnavailableError(f"no answer within {BROKER_TIMEOUT_S:g} s") from error

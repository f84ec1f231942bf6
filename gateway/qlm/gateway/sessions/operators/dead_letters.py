"""The dead-letter queue: messages that could not be processed, listed, requeued or deleted."""

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
from qlm.domain.errors import BrokerUnavailableError, DeliveryLostError, UndecodableDataError
from qlm.domain.ids import QueueName, RequestId
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.ports.store import GatewayStore
from qlm.domain.request import RequestMetadata, RequestRecord
from qlm.domain.shown import cut
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.ids import request_id
from qlm.gateway.api.reasons import LETTER_DELETED
from qlm.gateway.tokenizers.served_models import ServedModels

_log = logging.getLogger(__name__)

LETTERS_MAX: Final = 2000
"""Letters examined per call, from the oldest. RabbitMQ delivers each and takes it back: 0.7 ms, measured."""

RESOLVED_MAX: Final = 64
"""Letters requeued or deleted per call; their bodies, some MiB each at most, are in memory together."""

BROKER_TIMEOUT_S: Final = 8.0
"""Time limit of a whole call; less than the 10 s for which `qlm` waits for an answer."""

_GIVE_BACK_TIMEOUT_S: Final = 1.0
_ID_HEX_DIGITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter, as far as it can be decoded.

    Attributes:
        id: Digest of its bytes: the same on every gateway.
        reason: Why its message could not be processed.
        size_bytes: Length of the original message.
        queue: Queue of the original message; None if that cannot be decoded.
        at_ns: Time at which it became a dead letter; None if that cannot be decoded.
        metadata: The request without its prompt, if this version can decode the message.
        unreadable: Why it cannot be decoded, else empty.
    """

    id: str
    reason: str
    size_bytes: int
    queue: QueueName | None = None
    at_ns: int | None = None
    metadata: RequestMetadata | None = None
    unreadable: str = ""


class Resolution(StrEnum):
    """Results of a retry or deletion."""

    QUEUED = "queued"
    """Its request waits in its class queue."""
    REMOVED = "removed"
    """Its request runs or has ended: only the letter is gone."""
    DELETED = "deleted"
    """The message is gone for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedLetter:
    """A letter with its resolution and the reason for that."""

    letter: DeadLetter
    resolution: Resolution
    why: str = ""

    @property
    def queued(self) -> RequestId | None:
        """The request that was queued again; None if none was."""
        metadata = self.letter.metadata
        return metadata.id if metadata and self.resolution is Resolution.QUEUED else None


Resolve = Callable[[DeadLetter, bytes], Awaitable[ResolvedLetter]]


def decode_letter(body: bytes) -> DeadLetter:
    """Decode a message of the dead-letter queue, as far as possible."""
    id = f"dead-{hashlib.sha256(body).hexdigest()[:_ID_HEX_DIGITS]}"
    try:
        letter = decode_dead_letter(body)
    except UndecodableDataError as error:
        return DeadLetter(
            id=id, reason="this is not a dead letter", size_bytes=len(body), unreadable=str(error)
        )
    metadata, unreadable = None, ""
    try:
        metadata = decode_request(letter.body).metadata()
    except UndecodableDataError as error:
        unreadable = str(error)
    return DeadLetter(
        id=id,
        reason=letter.reason,
        size_bytes=len(letter.body),
        queue=letter.queue,
        at_ns=letter.at_ns,
        metadata=metadata,
        unreadable=unreadable,
    )


def has_id(id: str, body: bytes) -> bool:
    """Return whether a message is the letter with an id, or one of the request with that id."""
    letter = decode_letter(body)
    return id == letter.id or (letter.metadata is not None and request_id(id) == letter.metadata.id)


def letter_not_found(id: str) -> ApiError:
    """Return the error for an id that none of the examined letters has."""
    message = f"no dead letter {cut(id)}, and none of a request of that id; `qlm requests --dead` lists them"
    return ApiError(status=404, message=message, param="id", code="letter_not_found")


class DeadLetterQueue:
    """The dead-letter queue of a cluster."""

    def __init__(self, broker: Broker, store: GatewayStore, models: ServedModels) -> None:
        self._broker = broker
        self._store = store
        self._models = models

    async def depth(self) -> int:
        """Return the number of letters.

        Raises:
            BrokerUnavailableError: The queue is unavailable.
        """
        return await self._broker.depth(DEAD)

    async def letters(self) -> Sequence[DeadLetter]:
        """Return the oldest `LETTERS_MAX` letters, newest first; they stay in the queue.

        Raises:
            BrokerUnavailableError: The queue is unavailable.
        """
        async with _time_limit():
            letters = await self._broker.peek(DEAD, decode_letter, LETTERS_MAX)
        return sorted(reversed(letters), key=lambda letter: letter.at_ns or 0, reverse=True)

    async def retry(
        self, wanted: Callable[[bytes], bool], limit: int = RESOLVED_MAX
    ) -> Sequence[ResolvedLetter]:
        """Queue the requests of up to `limit` wanted letters again.

        Raises:
            ApiError: A letter cannot be decoded; those before it are resolved.
            BrokerUnavailableError, StoreUnavailableError: The next letter cannot be resolved now.
        """
        return await self._resolve(wanted, self._requeue, limit)

    async def delete(
        self, wanted: Callable[[bytes], bool], limit: int = RESOLVED_MAX
    ) -> Sequence[ResolvedLetter]:
        """Delete up to `limit` wanted letters, and cancel their requests if these still wait.

        Raises:
            BrokerUnavailableError, StoreUnavailableError: The next letter cannot be resolved now.
        """
        return await self._resolve(wanted, self._delete, limit)

    async def _resolve(
        self, wanted: Callable[[bytes], bool], resolve: Resolve, limit: int
    ) -> Sequence[ResolvedLetter]:
        resolved: list[ResolvedLetter] = []
        async with _time_limit():
            letters = list(await self._broker.pick(DEAD, wanted, limit, looks_max=LETTERS_MAX))
            try:
                while letters:
                    resolved.append(await self._resolve_one(letters[0], resolve, resolved))
                    letters.pop(0)
            finally:
                await self._give_back(letters)
        return resolved

    async def _resolve_one(
        self, delivery: Delivery, resolve: Resolve, before: Sequence[ResolvedLetter]
    ) -> ResolvedLetter:
        letter = decode_letter(delivery.body)
        if letter.metadata is not None and letter.metadata.id in {each.queued for each in before}:
            why = f"request {letter.metadata.id} already waits in its queue"
            resolved = ResolvedLetter(letter=letter, resolution=Resolution.REMOVED, why=why)
        else:
            resolved = await resolve(letter, delivery.body)
        try:
            await self._broker.ack(delivery)
        except DeliveryLostError as error:
            message = f"the connection was lost before letter {letter.id} was removed; list the letters again"
            raise BrokerUnavailableError(message) from error
        return resolved

    async def _requeue(self, letter: DeadLetter, body: bytes) -> ResolvedLetter:
        if (metadata := letter.metadata) is None:
            message = (
                f"dead letter {letter.id} cannot be requeued: {letter.unreadable}; it can only be deleted"
            )
            raise ApiError(status=409, message=message, param="id", code="letter_unreadable")
        record = await self._store.record(metadata.id)
        if record is not None and (why := _served(record, metadata)):
            return ResolvedLetter(letter=letter, resolution=Resolution.REMOVED, why=why)
        await self._broker.publish(metadata.cls.queue, decode_dead_letter(body).body)
        await self._store.enqueue(metadata)
        why = ""
        if metadata.model not in self._models:
            why = f"it waits, although no model {metadata.model} is configured here"
        _log.info(
            *("dead letter %s: requeued request %s in %s", letter.id, metadata.id, metadata.cls.queue),
            extra={"request_id": metadata.id},
        )
        return ResolvedLetter(letter=letter, resolution=Resolution.QUEUED, why=why)

    async def _delete(self, letter: DeadLetter, body: bytes) -> ResolvedLetter:
        why = ""
        if (metadata := letter.metadata) is not None:
            record = await self._store.record(metadata.id)
            if record is not None and not _served(record, metadata):
                # Without this message no agent will ever run it.
                await self._store.cancel(metadata.id, why=LETTER_DELETED)
                why = f"request {metadata.id} is cancelled"
        _log.warning("deleted dead letter %s (%d bytes): %s", letter.id, letter.size_bytes, letter.reason)
        return ResolvedLetter(letter=letter, resolution=Resolution.DELETED, why=why)

    async def _give_back(self, letters: Sequence[Delivery]) -> None:
        """Return letters, also those behind one that cannot be.

        Raises:
            Exception: A bug that the first of them met.
        """
        bug: Exception | None = None
        with contextlib.suppress(TimeoutError):  # they return when the connection ends
            async with asyncio.timeout(_GIVE_BACK_TIMEOUT_S):
                for delivery in letters:
                    try:
                        await self._broker.requeue(delivery)
                    except (DeliveryLostError, BrokerUnavailableError):
                        continue
                    except Exception as error:
                        bug = bug or error
        if bug is not None:
            raise bug


def _served(record: RequestRecord, metadata: RequestMetadata) -> str:
    """Return why a request needs no message in its queue; empty if it waits."""
    if not record.metadata.is_same_request(metadata):
        return f"another request has the id {metadata.id}, from the same Idempotency-Key"
    if record.outcome is not None:
        return f"request {record.metadata.id} has ended: {record.outcome}"
    if record.lease is not None:
        return f"request {record.metadata.id} runs on {record.lease.holder.instance}"
    return ""


@contextlib.asynccontextmanager
async def _time_limit() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(BROKER_TIMEOUT_S):
            yield
    except TimeoutError as error:
        raise BrokerUnavailableError(f"no answer within {BROKER_TIMEOUT_S:g} s") from error

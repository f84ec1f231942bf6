"""The members of a family, and where they are found."""

import asyncio
from collections.abc import Sequence

from qlm.domain.ids import RequestId
from qlm.domain.ports.store import GatewayStore
from qlm.domain.request import RequestMetadata, RequestRecord
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.ids import member_id
from qlm.gateway.api.schema import Body


def answers_wanted(body: Body) -> int:
    """Return the number of answers to a body."""
    return body.n * body.prompt_count


async def members_of(store: GatewayStore, record: RequestRecord) -> Sequence[RequestRecord]:
    """Return the records of a family, given that of its first request; of any other request, its own.

    Those that were erased are left out.

    Raises:
        ApiError: The result of one has expired.
    """
    ids = other_members(record.metadata)
    further = await asyncio.gather(*map(store.record, ids))
    found = [record]
    for id, each in zip(ids, further, strict=True):
        if each is None:
            raise expired(id)
        if not each.erased:
            found.append(each)
    return found


async def stored_members(store: GatewayStore, record: RequestRecord) -> Sequence[RequestRecord]:
    """Return what is still stored of a family, given its first request; of any other request, its own."""
    further = await asyncio.gather(*map(store.record, other_members(record.metadata)))
    return [record, *(each for each in further if each is not None)]


async def cancel_all(store: GatewayStore, record: RequestRecord, why: str) -> RequestRecord:
    """Cancel a family, given its first request, or any other request; return the record of the one given."""
    for id in other_members(record.metadata):
        await store.cancel(id, why=why)
    return await store.cancel(record.metadata.id, why=why) or record


def other_members(metadata: RequestMetadata) -> Sequence[RequestId]:
    """Return the ids of the other requests of a family, given its first; none for any other request."""
    if metadata.extensions.choice:
        return ()
    return [member_id(metadata.id, choice) for choice in range(1, metadata.extensions.choices or 1)]


def expired(id: str) -> ApiError:
    """Return the error for one answer of several whose result is no longer stored."""
    message = f"request {id} not found: one of several answers, whose result has expired"
    return ApiError(status=404, message=message, param="id", code="request_not_found")

"""The members of a family, and where they are found."""

import asyncio
from collections.abc import Sequence

from qlm.domain.ids import RequestId
from qlm.domain.ports.store import GatewayStore
from qlm.domain.request import RequestMetadata, RequestRecord
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.ids import member_id
from qlm.gateway.api.schema import Body
from qlm.gateway.sessions.load.load_watch import LoadWatch
from qlm.gateway.sessions.load.unknown import unknown


def answers_wanted(body: Body) -> int:
    """Return the number of answers to a body."""
    return body.n * body.prompt_count


async def members_of(store: GatewayStore, load: LoadWatch, record: RequestRecord) -> Sequence[RequestRecord]:
    """Return the records of a family, given that of its first request; of any other request, its own.

    Those that were erased are left out.

    Raises:
        ApiError: The store does not know one: not yet (503), or no longer (404).
    """
    ids = other_members(record.metadata)
    further = await asyncio.gather(*map(store.record, ids))
    found = [record]
    for id, each in zip(ids, further, strict=True):
        known = each or await known_member(store, load, id)
        if not known.erased:
            found.append(known)
    return found


async def known_member(store: GatewayStore, load: LoadWatch, id: RequestId) -> RequestRecord:
    """Return the record of a further request of a family, which the store may not know.

    Raises:
        ApiError: It does not know it: not yet (503), or no longer (404).
    """
    error = await unknown(load, id, _expired(id))
    if (record := await store.record(id)) is None:
        raise error
    return record


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


def _expired(id: RequestId) -> ApiError:
    message = f"request {id} not found: one of several answers, whose result has expired"
    return ApiError(status=404, message=message, param="id", code="request_not_found")

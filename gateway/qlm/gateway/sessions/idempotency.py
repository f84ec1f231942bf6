"""Idempotency-Key: a retry finds the request of an earlier attempt, on any gateway."""

import asyncio
import hashlib
from typing import Any, Final, NamedTuple

import orjson

from qlm.domain.ids import RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.ports.store import GatewayStore
from qlm.domain.request import RequestMetadata, RequestRecord
from qlm.gateway.api.bodies.parts import integer_of
from qlm.gateway.api.errors import ApiError, invalid, retry_headers, shown
from qlm.gateway.api.ids import member_id
from qlm.gateway.sessions.families.members import stored_members

KEY_HEADER: Final = "idempotency-key"
KEY_CHARACTERS_MAX: Final = 255

ATTEMPTS_MAX: Final = 16
"""Attempts per key: a request that ended in a way that is worth a retry is tried again under a new id."""

KEY_EXHAUSTED: Final = "idempotency_key_exhausted"
"""Code of the error for a key whose attempts are used up."""


class BodyDigests(NamedTuple):
    """Digests of a body that comes with a key.

    Attributes:
        kept: Its fingerprint, which its request keeps.
        as_written: That of versions for which 5 and 5.0 differ; empty without a key.
    """

    kept: str = ""
    as_written: str = ""


def digests_of(body: dict[str, Any]) -> BodyDigests:
    """Return the digests of a body."""
    return BodyDigests(fingerprint(body), _digest(body))


async def find_earlier(
    store: GatewayStore, tenant: str, key: str, digests: BodyDigests, others: int = 0
) -> tuple[RequestId, RequestRecord | None]:
    """Return the request of a key, or the id for a new one.

    A request that ended without an answer, in a way that makes a retry worthwhile, is tried again.

    Args:
        store: The shared state.
        tenant: Whose key it is.
        key: The key.
        digests: Those of the body that comes with it now.
        others: Requests of the call beside the first one, which is the one returned.

    Raises:
        ApiError: The key is too long, came before with another body or for a request that was erased since,
            or was tried too often.
    """
    if not 1 <= len(key) <= KEY_CHARACTERS_MAX:
        raise invalid(
            KEY_HEADER, f"{KEY_HEADER} has {len(key)} characters; expected 1 to {KEY_CHARACTERS_MAX}"
        )
    for attempt in range(ATTEMPTS_MAX):
        id = keyed_id(tenant, key, attempt)
        record = await store.record(id)
        if record is None:
            if await _was_withdrawn(store, id, others):
                continue
            return id, None
        check_same_body(key, record.metadata, digests)
        if record.erased:
            raise _erased(key)
        if not await _is_to_be_tried_again(store, record):
            return id, record
    raise ApiError(
        status=409,
        message=f"{KEY_HEADER} {key!r} was tried {ATTEMPTS_MAX} times without an answer; expected a new key",
        kind="conflict_error",
        param=KEY_HEADER,
        code=KEY_EXHAUSTED,
    )


async def _is_to_be_tried_again(store: GatewayStore, record: RequestRecord) -> bool:
    """Return whether a request of a call ended without an answer, in a way that makes a retry worthwhile.

    `record` is that of its first one. The others were cancelled if one of them was refused or failed.
    """
    members = await stored_members(store, record)
    outcomes = {each.outcome for each in members if each.outcome is not None and not each.erased}
    if not outcomes.isdisjoint((Outcome.REFUSED, Outcome.FAILED)):
        return False
    return not all(outcome.ok for outcome in outcomes)


async def _was_withdrawn(store: GatewayStore, id: RequestId, others: int) -> bool:
    """Return whether an attempt was given up before its first request, which is queued last, was queued.

    What was withdrawn or cancelled of it would be dropped once more under these ids.
    """
    records = await asyncio.gather(*(store.record(member_id(id, at)) for at in range(1, others + 1)))
    ends = {each.outcome or each.end_asked for each in records if each is not None}
    return Outcome.CANCELLED in ends


def check_same_body(key: str, metadata: RequestMetadata, digests: BodyDigests) -> None:
    """Compare a body's digests with that of the request that the key named before.

    Raises:
        ApiError: They differ.
    """
    if metadata.fingerprint not in digests:
        raise key_reused(f"{KEY_HEADER} is {shown(key)}, which")


def key_reused(which: str = "the key") -> ApiError:
    """Return the error for a key that came with two bodies; `which` begins its message."""
    message = f"{which} came before with another body; expected a new key"
    return ApiError(status=422, message=message, param=KEY_HEADER, code="idempotency_key_reused")


def _erased(key: str) -> ApiError:
    message = f"{KEY_HEADER} is {shown(key)}, whose request was deleted; expected a new key"
    return ApiError(
        status=409,
        message=message,
        kind="conflict_error",
        param=KEY_HEADER,
        code="idempotency_key_erased",
        headers=retry_headers(None),
    )


def keyed_id(tenant: str, key: str, attempt: int) -> RequestId:
    """Derive the id of a request from its key; keys of different tenants never collide."""
    digest = hashlib.blake2b(orjson.dumps([tenant, key, attempt]), digest_size=16)
    return RequestId(digest.hexdigest())


def fingerprint(body: dict[str, Any]) -> str:
    """Return a digest of a body that depends neither on the order of its fields nor on the form of numbers.

    JSON has one kind of numbers: 5 and 5.0 are equal, and clients in JavaScript can write the first alone.
    """
    return _digest(_in_one_form(body))


def _in_one_form(value: Any) -> Any:
    match value:
        case dict():
            return {name: _in_one_form(each) for name, each in value.items()}
        case list():  # of token ids, perhaps many
            return [each if type(each) is int else _in_one_form(each) for each in value]
        case float():
            return integer_of(value)
    return value


def _digest(body: Any) -> str:
    plain = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(plain, digest_size=16).hexdigest()

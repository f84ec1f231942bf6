"""/admin/v1/dead: dead letters listed, requeued, deleted."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from starlette.requests import Request as HttpRequest

from qlm.domain.request import RequestMetadata
from qlm.domain.shown import cut
from qlm.gateway.api.fields.dead import (
    DeadLetterFields,
    DeadLetters,
    DeadRequest,
    ResolvedCounts,
    ResolvedLetterFields,
    ResolvedLetters,
)
from qlm.gateway.http.admin import list_limit
from qlm.gateway.http.responses import Json
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.operators.dead_letters import (
    LETTERS_MAX,
    DeadLetter,
    DeadLetterQueue,
    Resolution,
    ResolvedLetter,
    decode_letter,
    has_id,
    letter_not_found,
)


async def list_dead(gateway: Gateway, request: HttpRequest) -> Json[DeadLetters]:
    """Answer GET /admin/v1/dead?limit=: dead letters, newest first; they stay in their queue."""
    limit = list_limit(request.query_params.get("limit"), LETTERS_MAX)
    queue = _queue(gateway)
    letters = await queue.letters()
    total = len(letters) if len(letters) < LETTERS_MAX else max(LETTERS_MAX, await queue.depth())
    return Json({"letters": [_letter(each) for each in letters[:limit]], "total": total})


async def retry_dead(gateway: Gateway, request: HttpRequest) -> Json[ResolvedLetters]:
    """Answer POST /admin/v1/dead/{id}/retry: requeue the letter with that id, or those of the request."""
    id = request.path_params["id"]
    return _resolved(id, await _queue(gateway).retry(partial(has_id, id)))


async def delete_dead(gateway: Gateway, request: HttpRequest) -> Json[ResolvedLetters]:
    """Answer DELETE /admin/v1/dead/{id}: delete the letter with that id, or those of the request."""
    id = request.path_params["id"]
    return _resolved(id, await _queue(gateway).delete(partial(has_id, id)))


async def retry_all_dead(gateway: Gateway, request: HttpRequest) -> Json[ResolvedCounts]:
    """Answer POST /admin/v1/dead/retry: requeue the oldest readable letters, at most 64 per call."""
    queue = _queue(gateway)
    return Json(_counts(await queue.retry(_readable), await queue.depth()))


async def delete_all_dead(gateway: Gateway, request: HttpRequest) -> Json[ResolvedCounts]:
    """Answer DELETE /admin/v1/dead: delete the oldest letters, at most 64 per call."""
    queue = _queue(gateway)
    return Json(_counts(await queue.delete(lambda _: True), await queue.depth()))


def _queue(gateway: Gateway) -> DeadLetterQueue:
    return DeadLetterQueue(gateway.broker, gateway.store, gateway.models)


def _resolved(id: str, resolved: Sequence[ResolvedLetter]) -> Json[ResolvedLetters]:
    if not resolved:
        raise letter_not_found(id)
    return Json({"settled": [_resolved_letter(each) for each in resolved]})


def _counts(resolved: Sequence[ResolvedLetter], left: int) -> ResolvedCounts:
    counts = Counter(each.resolution for each in resolved)
    return {
        "queued": counts[Resolution.QUEUED],
        "removed": counts[Resolution.REMOVED],
        "deleted": counts[Resolution.DELETED],
        "left": left,
    }


def _readable(body: bytes) -> bool:
    return decode_letter(body).metadata is not None


def _resolved_letter(each: ResolvedLetter) -> ResolvedLetterFields:
    metadata = each.letter.metadata
    return {
        "id": each.letter.id,
        "request": None if metadata is None else metadata.id,
        "result": each.resolution.value,
        "why": each.why or None,
    }


def _letter(letter: DeadLetter) -> DeadLetterFields:
    return {
        "id": letter.id,
        "reason": cut(letter.reason),
        "at_s": None if letter.at_ns is None else letter.at_ns / 1e9,
        "queue": letter.queue,
        "bytes": letter.size_bytes,
        "unreadable": cut(letter.unreadable) or None,
        "request": None if letter.metadata is None else _request(letter.metadata),
    }


def _request(metadata: RequestMetadata) -> DeadRequest:
    return {
        "id": metadata.id,
        "model": metadata.model,
        "slo_class": metadata.cls.slo,
        "priority": metadata.cls.priority,
        "tenant": metadata.tenant,
        "queue": metadata.cls.queue,
        "arrival_s": metadata.arrival_ns / 1e9,
        "deadline_s": None if metadata.deadline_ns is None else metadata.deadline_ns / 1e9,
        "prompt_tokens": metadata.prompt_tokens,
    }

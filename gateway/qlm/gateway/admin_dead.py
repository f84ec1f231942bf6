"""/admin/v1/dead: dead letters listed, put back, deleted."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from starlette.requests import Request as HttpRequest

from qlm.broker.topology import DEAD
from qlm.domain.request import RequestCard
from qlm.domain.shown import cut
from qlm.gateway.admin import list_limit
from qlm.gateway.answers import Json
from qlm.gateway.dead_letters import (
    LETTERS_MAX,
    Letter,
    Settle,
    Settled,
    Settlement,
    delete,
    has_id,
    look,
    no_letter,
    put_back,
    read_letter,
    settle,
)
from qlm.gateway.fields.dead import (
    DeadLetter,
    DeadLetters,
    DeadRequest,
    SettledCounts,
    SettledLetter,
    SettledLetters,
)
from qlm.gateway.gateway import Gateway


async def list_dead(gateway: Gateway, request: HttpRequest) -> Json[DeadLetters]:
    """Answer GET /admin/v1/dead?limit=: dead letters, the newest first; they stay."""
    limit = list_limit(request.query_params.get("limit"), LETTERS_MAX)
    letters = await look(gateway.broker)
    total = len(letters) if len(letters) < LETTERS_MAX else max(LETTERS_MAX, await _count(gateway))
    return Json({"letters": [_letter(each) for each in letters[:limit]], "total": total})


async def retry_dead(gateway: Gateway, request: HttpRequest) -> Json[SettledLetters]:
    """Answer POST /admin/v1/dead/{id}/retry: put back the letter of that id, or those of its request."""
    return await _settle_id(gateway, request, put_back)


async def delete_dead(gateway: Gateway, request: HttpRequest) -> Json[SettledLetters]:
    """Answer DELETE /admin/v1/dead/{id}: delete them, likewise."""
    return await _settle_id(gateway, request, delete)


async def retry_all_dead(gateway: Gateway, request: HttpRequest) -> Json[SettledCounts]:
    """Answer POST /admin/v1/dead/retry: put the oldest readable ones back, as many as one call settles."""
    settled = await settle(gateway, _readable, put_back)
    return Json(await _summary(gateway, settled))


async def delete_all_dead(gateway: Gateway, request: HttpRequest) -> Json[SettledCounts]:
    """Answer DELETE /admin/v1/dead: delete the oldest ones, as many as one call settles."""
    settled = await settle(gateway, lambda _: True, delete)
    return Json(await _summary(gateway, settled))


async def _settle_id(gateway: Gateway, request: HttpRequest, how: Settle) -> Json[SettledLetters]:
    id = request.path_params["id"]
    settled = await settle(gateway, partial(has_id, id), how)
    if not settled:
        raise no_letter(id)
    return Json({"settled": [_settlement(each) for each in settled]})


async def _summary(gateway: Gateway, settled: Sequence[Settlement]) -> SettledCounts:
    counts = Counter(each.what for each in settled)
    return {
        "queued": counts[Settled.QUEUED],
        "removed": counts[Settled.REMOVED],
        "deleted": counts[Settled.DELETED],
        "left": await _count(gateway),
    }


async def _count(gateway: Gateway) -> int:
    return await gateway.broker.depth(DEAD)


def _readable(body: bytes) -> bool:
    return read_letter(body).card is not None


def _settlement(each: Settlement) -> SettledLetter:
    card = each.letter.card
    return {
        "id": each.letter.id,
        "request": None if card is None else card.id,
        "result": each.what.value,
        "why": each.why or None,
    }


def _letter(letter: Letter) -> DeadLetter:
    return {
        "id": letter.id,
        "reason": cut(letter.reason),
        "at_s": None if letter.at_ns is None else letter.at_ns / 1e9,
        "queue": letter.queue,
        "bytes": letter.size_bytes,
        "unreadable": cut(letter.unreadable) or None,
        "request": None if letter.card is None else _card(letter.card),
    }


def _card(card: RequestCard) -> DeadRequest:
    return {
        "id": card.id,
        "model": card.model,
        "slo_class": card.cls.slo,
        "priority": card.cls.priority,
        "tenant": card.tenant,
        "queue": card.cls.queue,
        "arrival_s": card.arrival_ns / 1e9,
        "deadline_s": None if card.deadline_ns is None else card.deadline_ns / 1e9,
        "prompt_tokens": card.prompt_tokens,
    }

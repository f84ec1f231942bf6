"""What the shared state says of one request, for whichever door asks."""

import asyncio
from typing import Final, cast

from qlm.domain.ids import RequestId
from qlm.domain.output import OutputSlice
from qlm.domain.plain import slo_to_plain
from qlm.domain.request import RequestRecord
from qlm.domain.shown import cut
from qlm.gateway.answer_text import answer_text, finish_reason
from qlm.gateway.errors import ApiError, unavailable
from qlm.gateway.fields.requests import Objective, RequestStatus
from qlm.gateway.gateway import Gateway
from qlm.gateway.objective import tier_of
from qlm.gateway.session_events import SendFinal

_RENDER_TOKENS: Final = 1024
"""Tokens made into text at a stretch; other requests get their turn in between."""


async def known_request(gateway: Gateway, id: RequestId) -> RequestRecord:
    """Find a request.

    Raises:
        ApiError: The store does not know it: not yet (503), or not any more (404).
    """
    record = await gateway.store.record(id)
    if record is not None:
        return record
    unknown = await _unknown(gateway, id)
    # It may have been found in the queue since the first look, and the store be whole only since then.
    record = await gateway.store.record(id)
    if record is not None:
        return record
    raise unknown


def describe(gateway: Gateway, record: RequestRecord) -> RequestStatus:
    """A request's state as JSON."""
    card = record.card
    return {
        "id": card.id,
        "object": "qlm.request",
        "model": card.model,
        "status": record.state,
        "outcome": record.outcome,
        "cancel_requested": record.cancel_requested,
        "created": card.arrival_ns // 10**9,
        "arrival_s": card.arrival_ns / 1e9,
        "deadline_s": _seconds(card.deadline_ns),
        "first_token_s": _seconds(record.first_token_ns),
        "ended_s": _seconds(record.ended_ns),
        "slo": cast("Objective", slo_to_plain(card.slo) | {"on_miss": card.on_miss}),
        "service_tier": tier_of(card.slo, gateway.limits),
        "priority": card.cls.priority,
        "prompt_tokens": card.prompt_tokens,
        "output_tokens": record.output_tokens,
        "instance": None if record.lease is None else record.lease.holder.instance,
    }


async def final_answer(gateway: Gateway, record: RequestRecord) -> SendFinal:
    """Read how a request ended; the text and tokens of its answer, if it ended well.

    Raises:
        ApiError: The store was emptied since it told of the request.
    """
    log = await gateway.store.read_output(record.card.id, 0)
    if log is None:
        raise await _unknown(gateway, record.card.id)
    outcome = record.outcome if log.outcome is None else log.outcome
    assert outcome is not None
    if not outcome.ok:
        return SendFinal(log.end, "", None, outcome, log.detail)
    return await _render(gateway, record, log)


async def _render(gateway: Gateway, record: RequestRecord, log: OutputSlice) -> SendFinal:
    card = record.card
    outcome = record.outcome if log.outcome is None else log.outcome
    assert outcome is not None
    text = answer_text(card, gateway.served(card.model).tokenizer)
    pieces = []
    for start in range(0, len(log.token_ids), _RENDER_TOKENS):
        pieces.append(text.feed(log.token_ids[start : start + _RENDER_TOKENS]))
        await asyncio.sleep(0)
    pieces.append(text.finish())
    ids = log.token_ids[: text.tokens]
    return SendFinal(text.tokens, "".join(pieces), finish_reason(text, outcome), outcome, token_ids=ids)


async def _unknown(gateway: Gateway, id: RequestId) -> ApiError:
    """Make the error for a request that the store does not know: not yet, or not any more."""
    if await gateway.load.rebuilding():
        return unavailable(
            f"request {cut(id)} is not known yet: the shared state is being rebuilt", "state_rebuilding"
        )
    message = f"no request {cut(id)}; it never was, or ended so long ago that it was forgotten"
    return ApiError(status=404, message=message, param="id", code="request_not_found")


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9

"""/v1/requests: what became of a request, on any gateway; cancelling it; going on with its stream."""

import asyncio
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from qlm.domain.ids import RequestId
from qlm.domain.output import OutputSlice
from qlm.domain.plain import slo_to_plain
from qlm.domain.request import RequestRecord
from qlm.domain.shown import cut
from qlm.gateway.accept import open_seat
from qlm.gateway.answer_text import answer_text, finish_reason
from qlm.gateway.answers import json_answer
from qlm.gateway.errors import ApiError, from_outcome, invalid, shown, unavailable
from qlm.gateway.gateway import Gateway
from qlm.gateway.http import lower_headers, stream_answer, wants_resumable
from qlm.gateway.objective import tier_of
from qlm.gateway.session import Mode
from qlm.gateway.session_events import SendFinal
from qlm.gateway.shapes import StreamShape, answer_object
from qlm.gateway.sinks import StreamSink

_RENDER_TOKENS: Final = 1024
"""Tokens made into text at a stretch; other requests get their turn in between."""

_OFFSET_MAX: Final = 2**31
_DIGITS_MAX: Final = 20


async def get_request(gateway: Gateway, request: HttpRequest) -> Response:
    """Answer GET /v1/requests/{id}: its state, and the OpenAI answer object once there is one."""
    record = await _known(gateway, request)
    status = describe(gateway, record)
    headers = {"x-request-id": record.card.id}
    if record.outcome is None:
        return json_answer(status, headers=headers)
    log = await gateway.store.read_output(record.card.id, 0)
    if log is None:
        raise await _unknown(gateway, record.card.id)  # the store was emptied between the two questions
    if record.outcome.ok:
        return json_answer(status | {"response": await _answer(gateway, record, log)}, headers=headers)
    error = from_outcome(record.outcome, log.detail)
    # The question was how the request stands, and that is answered: the bad end is in the body.
    return json_answer(status | error.body(), headers=headers)


async def cancel_request(gateway: Gateway, request: HttpRequest) -> Response:
    """Answer DELETE /v1/requests/{id}."""
    record = await _known(gateway, request)
    after = await gateway.store.cancel(record.card.id)
    return json_answer(describe(gateway, after or record), headers={"x-request-id": record.card.id})


async def resume_stream(gateway: Gateway, request: HttpRequest) -> Response:
    """Answer GET /v1/requests/{id}/events: its stream, from where the client left it."""
    record = await _known(gateway, request)
    shown = _offset(request)
    shape = StreamShape(
        record.card,
        tier_of(record.card.slo, gateway.limits),
        resumable=wants_resumable(gateway, lower_headers(request)),
        include_usage=request.query_params.get("include_usage") == "true",
    )
    sink = StreamSink(shape, shown)
    seat = open_seat(
        gateway,
        record.card,
        sink,
        Mode.STREAM,
        grace_s=gateway.limits.resume_grace_stream_s,
        counted=False,
        shown=shown,
    )
    gateway.hub.look_up(seat)
    return stream_answer(gateway, seat, sink)


def describe(gateway: Gateway, record: RequestRecord) -> dict[str, Any]:
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
        "slo": slo_to_plain(card.slo) | {"on_miss": card.on_miss},
        "service_tier": tier_of(card.slo, gateway.limits),
        "priority": card.cls.priority,
        "prompt_tokens": card.prompt_tokens,
        "output_tokens": record.output_tokens,
        "instance": None if record.lease is None else record.lease.holder.instance,
    }


async def _known(gateway: Gateway, request: HttpRequest) -> RequestRecord:
    id = RequestId(request.path_params["id"])
    record = await gateway.store.record(id)
    if record is not None:
        return record
    unknown = await _unknown(gateway, id)
    # It may have been found in the queue since the first look, and the store be whole only since then.
    record = await gateway.store.record(id)
    if record is not None:
        return record
    raise unknown


async def _unknown(gateway: Gateway, id: RequestId) -> ApiError:
    """Make the error for a request that the store does not know: not yet, or not any more."""
    if await gateway.load.rebuilding():
        return unavailable(
            f"request {cut(id)} is not known yet: the shared state is being rebuilt", "state_rebuilding"
        )
    message = f"no request {cut(id)}; it never was, or ended so long ago that it was forgotten"
    return ApiError(status=404, message=message, param="id", code="request_not_found")


async def _answer(gateway: Gateway, record: RequestRecord, log: OutputSlice) -> dict[str, Any]:
    """Render an answer from its stored token ids."""
    card = record.card
    outcome = record.outcome if log.outcome is None else log.outcome
    assert outcome is not None
    text = answer_text(card, gateway.served(card.model).tokenizer)
    pieces = []
    for start in range(0, len(log.token_ids), _RENDER_TOKENS):
        pieces.append(text.feed(log.token_ids[start : start + _RENDER_TOKENS]))
        await asyncio.sleep(0)
    pieces.append(text.finish())
    final = SendFinal(text.tokens, "".join(pieces), finish_reason(text, outcome), outcome)
    return answer_object(card, final, tier_of(card.slo, gateway.limits))


def _offset(request: HttpRequest) -> int:
    """Output tokens that the client has been shown."""
    name, text = "Last-Event-ID", request.headers.get("last-event-id")
    if text is None:
        name, text = "offset", request.query_params.get("offset", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text) <= _OFFSET_MAX):
        raise invalid(name, f"{name} is {shown(text)}; expected a number of output tokens")
    return int(text)


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9

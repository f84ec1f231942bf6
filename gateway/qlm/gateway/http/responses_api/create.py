"""POST /v1/responses."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from qlm.domain.errors import QlmError
from qlm.domain.request import AnswerKind
from qlm.gateway.api.bodies.json_object import parse_json
from qlm.gateway.api.errors import ApiError, from_outcome, from_qlm
from qlm.gateway.api.fields.responses_api import ResponseObject
from qlm.gateway.api.lateness import lateness_headers
from qlm.gateway.api.openai_shapes import StreamForm
from qlm.gateway.api.responses_api.body import NEUTRAL, ResponseBody, parse_response
from qlm.gateway.api.responses_api.chat import NAMES, as_chat
from qlm.gateway.api.responses_api.items import as_items, image_places
from qlm.gateway.api.responses_api.state import ResponseState, state_of
from qlm.gateway.api.schema import ChatBody, parse_chat
from qlm.gateway.core.session import Mode
from qlm.gateway.core.session_events import SendFinal
from qlm.gateway.http.attempts import attempt_of, fields_renamed, images_renamed
from qlm.gateway.http.completions import (
    default_form,
    lower_headers,
    prepare_or_take_up,
    read_body,
    stream_answer,
    stream_form,
    whole_left,
)
from qlm.gateway.http.derendered import sink_of
from qlm.gateway.http.document.accepts import accepts
from qlm.gateway.http.keys.check import key_tenant
from qlm.gateway.http.opened import OpenedSink
from qlm.gateway.http.responses import Json, StreamAnswer, WholeAnswer, error_answer
from qlm.gateway.http.responses_api.conversation import earlier_messages
from qlm.gateway.http.responses_api.earlier import StopWaits
from qlm.gateway.http.responses_api.prepared import identity_of, prepared_with
from qlm.gateway.http.responses_api.references import with_items
from qlm.gateway.http.responses_api.shown import StoredResponse, ended_response, events_of, response_now
from qlm.gateway.http.responses_api.stored import streamed
from qlm.gateway.http.sinks import WholeSink
from qlm.gateway.observability.refusals import refusals_recorded
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.intake import Prepared
from qlm.gateway.webhooks.endpoints import RESPONSE_EVENTS

Created = WholeAnswer | StreamAnswer | Json[ResponseObject]
"""Answers to an accepted request."""


@accepts(ResponseBody, neutral=NEUTRAL)
async def create_response(gateway: Gateway, request: HttpRequest) -> Created:
    """Answer POST /v1/responses: a response; whole, as a stream, or in the background."""
    headers = lower_headers(request)
    attempt = attempt_of(gateway, request, AnswerKind.CHAT, headers)
    with refusals_recorded(attempt, gateway.metrics, gateway.spans, gateway.clock), fields_renamed(NAMES):
        plain = parse_json(await read_body(request, gateway.limits.body_bytes_max))
        attempt.model = plain.get("model")
        body = parse_response(plain)
        asked = stream_form(headers, default=default_form(gateway))
        form = asked if body.stream else StreamForm.PLAIN
        made = await _earlier(gateway, body, plain, headers)
        if made is None:
            tenant = key_tenant(request)
            waits = StopWaits(gateway)
            body = await with_items(gateway, body, tenant, waits)
            earlier = await earlier_messages(gateway, body.previous_response_id, tenant, waits)
            chat = as_chat(body, plain, earlier)
            with images_renamed(chat, image_places(as_items(body.input))):
                made = await _prepare(
                    gateway, body, parse_chat(chat), chat | {"response": plain}, headers, form
                )
        attempt.id = made.prepared.metadata.id
        return await made.answer(gateway, body, form)


class _Made:
    """A response that is admitted, and how its client gets it."""

    def __init__(self, prepared: Prepared, state: ResponseState, call: Any) -> None:
        self.prepared = prepared
        self._state = state
        self._call = call

    async def answer(self, gateway: Gateway, body: ResponseBody, form: StreamForm) -> Created:
        """Queue it, and return the answer to its client."""
        if self._state.background:
            return await self._later(gateway, body, form)
        if body.stream:
            return await self._stream(gateway, form)
        return await self._whole(gateway)

    async def _later(self, gateway: Gateway, body: ResponseBody, form: StreamForm) -> Created:
        metadata = self.prepared.metadata
        await gateway.intake.accept_detached(self.prepared)
        if body.stream:
            return await streamed(gateway, StoredResponse(metadata, self._state), -1, form)
        found = StoredResponse(metadata, self._state)
        if self.prepared.request is None:  # an earlier attempt with its Idempotency-Key queued it
            record = await gateway.store.record(metadata.id)
            found = replace(found, record=record)
        return Json(await response_now(gateway, found), {"x-request-id": metadata.id})

    async def _stream(self, gateway: Gateway, form: StreamForm) -> StreamAnswer:
        metadata = self.prepared.metadata
        shape = events_of(gateway, StoredResponse(metadata, self._state), form)
        sink = OpenedSink(sink_of(gateway, metadata, shape, shown=0), shape.opening())
        subscription = await gateway.intake.accept(self.prepared, sink, Mode.STREAM)
        return stream_answer(gateway, subscription, sink)

    async def _whole(self, gateway: Gateway) -> WholeAnswer:
        metadata, sink = self.prepared.metadata, WholeSink()
        subscription = await gateway.intake.accept(self.prepared, sink, Mode.WHOLE)
        render = partial(_render, gateway, StoredResponse(metadata, self._state))
        left = whole_left(gateway, subscription, self._call)
        return WholeAnswer(sink, left, {"x-request-id": metadata.id}, render)


async def _earlier(
    gateway: Gateway, body: ResponseBody, plain: dict[str, Any], headers: Mapping[str, str]
) -> _Made | None:
    """Return the response that an earlier attempt queued: it is there whatever became of those before it."""
    found = await gateway.intake.earlier(body, identity_of(plain), headers)
    if found is None:
        return None
    state = state_of(body, plain)
    return _Made(prepared_with(found, state), state, None)


async def _prepare(
    gateway: Gateway,
    body: ResponseBody,
    chat: ChatBody,
    plain: dict[str, Any],
    headers: Mapping[str, str],
    form: StreamForm,
) -> _Made:
    """Admit a response, or find the one that an earlier attempt queued.

    `plain` is the body of its chat, with its own in the field `response`.
    """
    state = state_of(body, plain["response"])
    identity = identity_of(plain["response"])
    prepared, call = await prepare_or_take_up(
        gateway, chat, plain, headers, form, detached=state.background, identity=identity
    )
    notify = state.background and gateway.notifies(RESPONSE_EVENTS, prepared.metadata.tenant)
    return _Made(prepared_with(prepared, state, notify=notify), state, call)


async def _render(gateway: Gateway, found: StoredResponse, final: SendFinal) -> Response:
    answer = await _rendered(gateway, found, final)
    if answer.status_code == 200 or not final.outcome.ok:
        answer.headers.update(lateness_headers(final.attainment))
    return answer


async def _rendered(gateway: Gateway, found: StoredResponse, final: SendFinal) -> Response:
    if not final.outcome.ok:
        return error_answer(from_outcome(final.outcome, final.detail))
    try:
        return Json(await ended_response(gateway, found, final))
    except ApiError as error:
        return error_answer(error)
    except QlmError as error:
        return error_answer(from_qlm(error))

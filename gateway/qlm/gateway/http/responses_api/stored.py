"""/v1/responses/{id}: responses that were created before, on any gateway."""

from dataclasses import replace
from typing import Final

from starlette.requests import Request as HttpRequest

from qlm.gateway.api.errors import ApiError, invalid, shown
from qlm.gateway.api.fields.responses_api import ResponseObject
from qlm.gateway.api.openai_shapes import StreamForm
from qlm.gateway.api.reasons import BY_CLIENT
from qlm.gateway.core.answer_text import answer_text
from qlm.gateway.http.completions import default_form, lower_headers, stream_answer, stream_form
from qlm.gateway.http.derendered import is_derendered, is_replayed, sink_of
from qlm.gateway.http.keys.check import key_tenant
from qlm.gateway.http.opened import OpenedSink
from qlm.gateway.http.responses import Json, StreamAnswer
from qlm.gateway.http.responses_api.shown import StoredResponse, events_of, known_response, response_now
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.resume import resume
from qlm.gateway.sessions.unattended import match_stops

_DIGITS_MAX: Final = 9


async def get_response(gateway: Gateway, request: HttpRequest) -> Json[ResponseObject] | StreamAnswer:
    """Answer GET /v1/responses/{id}?stream=&starting_after=: a response as it is now, or its events."""
    found = await known_response(gateway, request.path_params["id"], key_tenant(request))
    form = stream_form(lower_headers(request), default=default_form(gateway))
    after = _starting_after(request)
    if request.query_params.get("stream") != "true":
        if found.record is not None:
            match_stops(gateway.hub, found.record)
        return Json(await response_now(gateway, found), {"x-request-id": found.metadata.id})
    return await streamed(gateway, found, after, form)


async def cancel_response(gateway: Gateway, request: HttpRequest) -> Json[ResponseObject]:
    """Answer POST /v1/responses/{id}/cancel: cancel a response that runs in the background."""
    found = await known_response(gateway, request.path_params["id"], key_tenant(request))
    if not found.state.background:
        message = (
            "only a response with background can be cancelled; another one ends when its client disconnects"
        )
        raise ApiError(status=400, message=message, param="id", code="not_in_background")
    after = await gateway.store.cancel(found.metadata.id, why=BY_CLIENT)
    found = replace(found, record=after or found.record)
    return Json(await response_now(gateway, found), {"x-request-id": found.metadata.id})


async def streamed(gateway: Gateway, found: StoredResponse, after: int, form: StreamForm) -> StreamAnswer:
    """Return the answer with the events of a response after a sequence number.

    Raises:
        ApiError: Its model is not served here, or this gateway is stopping.
    """
    metadata = found.metadata
    shape = events_of(gateway, found, form, after=after)
    shown_tokens, replays = 0, is_replayed(metadata)
    if not is_derendered(metadata) and (shown_tokens := shape.shown_at(after)):
        shown_tokens, text = await _shown(gateway, found, shown_tokens)
        shape = events_of(gateway, found, form, after=after, text_before=text, tokens_before=shown_tokens)
    sink = OpenedSink(sink_of(gateway, metadata, shape, shown=0), shape.opening())
    grace_s = gateway.limits.resume_grace_stream_s
    subscription = resume(gateway.hub, metadata, sink, shown_tokens, grace_s, replays=replays)
    return stream_answer(gateway, subscription, sink)


async def _shown(gateway: Gateway, found: StoredResponse, tokens: int) -> tuple[int, str]:
    """Return the tokens that a client has been shown, at most those of an ended answer, and their text."""
    log = await gateway.store.read_output(found.metadata.id, 0)
    if log is None:
        return tokens, ""
    if log.outcome is not None:
        tokens = min(tokens, len(log.token_ids))
    text = answer_text(found.metadata, gateway.models.named(found.metadata.model).tokenizer)
    return tokens, text.feed(log.token_ids[:tokens])


def _starting_after(request: HttpRequest) -> int:
    """Return the number of the last event that the client has; -1 for none."""
    name = "starting_after"
    text = request.query_params.get("starting_after")
    if text is None:
        return -1
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise invalid(name, f"{name} is {shown(text)}; expected the sequence number of an event")
    return int(text)

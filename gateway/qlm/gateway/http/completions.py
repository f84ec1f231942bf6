"""POST /v1/completions and /v1/chat/completions."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from qlm.domain.errors import QlmError
from qlm.domain.request import AnswerKind, RequestMetadata
from qlm.gateway.api.bodies.json_object import parse_json
from qlm.gateway.api.bodies.parts import StreamOptions
from qlm.gateway.api.errors import CLIENT_CLOSED, ApiError, from_outcome, from_qlm, invalid, shown
from qlm.gateway.api.fields.requests import AcceptedRequest
from qlm.gateway.api.lateness import lateness_headers
from qlm.gateway.api.neutral_fields import CHAT, COMPLETION
from qlm.gateway.api.objective import OBJECTIVE_HEADERS, tier_of
from qlm.gateway.api.openai_shapes import StreamForm, StreamShape
from qlm.gateway.api.rendered_fields import RENDERED
from qlm.gateway.api.schema import (
    Body,
    ChatBody,
    CompletionBody,
    parse_chat,
    parse_completion,
)
from qlm.gateway.api.translate import KEY_TENANT
from qlm.gateway.core.sdk_retries import SdkCall
from qlm.gateway.core.session import Mode
from qlm.gateway.core.session_events import SendFinal
from qlm.gateway.http.attempts import attempt_of
from qlm.gateway.http.derendered import answer_of, sink_of
from qlm.gateway.http.document.accepts import accepts
from qlm.gateway.http.families.answers import stream_family, whole_family
from qlm.gateway.http.keys.check import key_tenant
from qlm.gateway.http.responses import AcceptedJson, Json, StreamAnswer, WholeAnswer, error_answer
from qlm.gateway.http.sinks import EventSource, WholeSink
from qlm.gateway.observability.refusals import refusals_recorded
from qlm.gateway.observability.tracing import Attempt
from qlm.gateway.sessions.families.members import answers_wanted
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.intake import Prepared
from qlm.gateway.sessions.subscription import Subscription

STREAM_HEADER: Final = "x-qlm-stream"
RESUME_HEADER: Final = "last-event-id"
_LISTS: Final = OBJECTIVE_HEADERS | {"prefer"}
"""Headers of which several that differ are one list (RFC 9110), which is no value of an objective."""

_FORMS: Final = {"resumable": StreamForm.RESUMABLE, "plain": StreamForm.PLAIN}

Created = WholeAnswer | StreamAnswer | AcceptedJson[AcceptedRequest]
"""Answers to an accepted request."""


@accepts(CompletionBody, neutral=COMPLETION)
async def create_completion(gateway: Gateway, request: HttpRequest) -> Created:
    """Answer POST /v1/completions: text after a prompt; whole, as a stream, or later (202)."""
    return await _create(gateway, request, AnswerKind.COMPLETION, parse_completion)


@accepts(ChatBody, neutral={**CHAT, **RENDERED})
async def create_chat_completion(gateway: Gateway, request: HttpRequest) -> Created:
    """Answer POST /v1/chat/completions: the next message; whole, as a stream, or later (202)."""
    return await _create(gateway, request, AnswerKind.CHAT, parse_chat)


async def read_body(request: HttpRequest, bytes_max: int) -> bytes:
    """Return the body.

    Raises:
        ApiError: It is too large; the rest of it is not read.
    """
    body, more = bytearray(), True
    while more:
        event = await request.receive()  # the iterator of the request costs two generators
        if event["type"] == "http.disconnect":
            raise ApiError(status=CLIENT_CLOSED, message="the client disconnected", code="client_closed")
        body += event.get("body", b"")
        more = event.get("more_body", False)
        if len(body) > bytes_max:
            message = f"the body has more than {bytes_max} bytes; expected at most that"
            raise ApiError(
                status=413, message=message, code="body_too_large", headers={"connection": "close"}
            )
    return bytes(body)


def lower_headers(request: HttpRequest) -> dict[str, str]:
    """Return headers by name in lower case, and the tenant of a key; of several with one name the first."""
    headers: dict[str, str] = {}
    for name, value in request.scope["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1").strip()
        if key in _LISTS and headers.get(key, text) != text:
            headers[key] += f", {text}"
        headers.setdefault(key, text)
    if (tenant := key_tenant(request)) is not None:
        headers[KEY_TENANT] = tenant
    return headers


async def _create(
    gateway: Gateway, request: HttpRequest, kind: AnswerKind, parse: Callable[[dict[str, Any]], Body]
) -> Created:
    headers = lower_headers(request)
    detached = "respond-async" in headers.get("prefer", "").lower()
    attempt = attempt_of(gateway, request, kind, headers)
    with refusals_recorded(attempt, gateway.metrics, gateway.spans, gateway.clock):
        plain = parse_json(await read_body(request, gateway.limits.body_bytes_max))
        attempt.model = plain.get("model")
        body = parse(plain)
        asked = stream_form(headers, default=default_form(gateway))
        form = asked if body.stream else StreamForm.PLAIN
        if answers_wanted(body) > 1:
            return await _create_family(gateway, body, plain, headers, attempt, form)
        prepared, call = await prepare_or_take_up(gateway, body, plain, headers, form, detached=detached)
        attempt.id = prepared.metadata.id
        if detached:
            await gateway.intake.accept_detached(prepared)
            return _accepted(prepared)
        if body.stream:
            return await _stream(gateway, body, prepared, form)
        return await _whole(gateway, prepared, call)


async def _create_family(
    gateway: Gateway,
    body: Body,
    plain: dict[str, Any],
    headers: Mapping[str, str],
    attempt: Attempt,
    form: StreamForm,
) -> Created:
    detached = "respond-async" in headers.get("prefer", "").lower()
    if form is StreamForm.RESUMABLE and (STREAM_HEADER in headers or RESUME_HEADER in headers):
        message = f"{STREAM_HEADER} is resumable; expected no such stream with several answers"
        raise invalid(STREAM_HEADER, message, "unsupported_value")
    members = await gateway.families.prepare(body, plain, headers, detached=detached)
    attempt.id = members[0].metadata.id
    if detached:
        await gateway.families.accept_detached(members)
        return _accepted(members[0])
    if not body.stream:
        return await whole_family(gateway, members)
    return await stream_family(
        gateway, body, members, StreamForm.STANDARD if form is StreamForm.RESUMABLE else form
    )


def _accepted(prepared: Prepared) -> AcceptedJson[AcceptedRequest]:
    metadata = prepared.metadata
    content: AcceptedRequest = {
        "id": metadata.id,
        "object": "qlm.request",
        "model": metadata.answers_as,
        "status": prepared.state,
    }
    location = f"/v1/requests/{metadata.id}"
    headers = {"location": location, "preference-applied": "respond-async", "x-request-id": metadata.id}
    return AcceptedJson(content, headers)


async def _stream(gateway: Gateway, body: Body, prepared: Prepared, form: StreamForm) -> StreamAnswer:
    metadata = prepared.metadata
    options = body.stream_options or StreamOptions()
    shape = StreamShape(
        metadata,
        tier_of(metadata.slo, gateway.limits),
        fingerprint=gateway.models.fingerprint(metadata.answers_as),
        form=form,
        include_usage=options.include_usage,
        continuous_usage=options.continuous_usage_stats,
    )
    sink = sink_of(gateway, metadata, shape, 0, repeatable=form is StreamForm.RESUMABLE)
    subscription = await gateway.intake.accept(prepared, sink, Mode.STREAM)
    return stream_answer(gateway, subscription, sink)


async def _whole(gateway: Gateway, prepared: Prepared, call: SdkCall | None) -> WholeAnswer:
    metadata, sink = prepared.metadata, WholeSink()
    subscription = await gateway.intake.accept(prepared, sink, Mode.WHOLE)
    render = partial(_render, gateway, metadata)
    left = whole_left(gateway, subscription, call)
    return WholeAnswer(sink, left, {"x-request-id": metadata.id}, render)


async def prepare_or_take_up(
    gateway: Gateway,
    body: Body,
    plain: dict[str, Any],
    headers: Mapping[str, str],
    form: StreamForm,
    *,
    detached: bool = False,
    identity: dict[str, Any] | None = None,
) -> tuple[Prepared, SdkCall | None]:
    """Admit a call, or find the one that the retry of an SDK takes up; also return the call of an SDK.

    Args:
        gateway: The gateway.
        body: The checked body.
        plain: The body as received, in which retries must be equal.
        headers: By name in lower case.
        form: How the answer is streamed; a resumable client may come back for it.
        detached: The client does not wait for the answer.
        identity: As of `Intake.prepare`.

    Raises:
        ApiError: The request is not acceptable, now or ever.
        QlmError: A value is out of range, or the store is unavailable.
    """
    call = None if detached else gateway.intake.sdk_call(body, plain, headers)
    found = None if call is None else await gateway.intake.taken_up(call)
    if found is not None:
        return found, call
    returns = form is StreamForm.RESUMABLE or call is not None
    prepared = await gateway.intake.prepare(
        body, plain, headers, detached=detached, returns=returns, identity=identity
    )
    return prepared, call


def whole_left(gateway: Gateway, subscription: Subscription, call: SdkCall | None) -> Callable[[], None]:
    """Return what to do when the client of a plain call disconnects; `call` is that of an SDK."""
    if call is None:
        return partial(gateway.hub.detach, subscription)
    return partial(gateway.intake.client_left, call, subscription)


def stream_answer(gateway: Gateway, subscription: Subscription, sink: EventSource) -> StreamAnswer:
    """Return the response that streams what a subscription's session sends."""
    open_streams = gateway.metrics.open_streams
    open_streams.inc()
    disconnected = partial(gateway.hub.detach, subscription)
    return StreamAnswer(sink, disconnected, open_streams.dec, {"x-request-id": subscription.metadata.id})


def stream_form(headers: Mapping[str, str], *, default: StreamForm) -> StreamForm:
    """Return the form of a stream that its client asks for.

    Raises:
        ApiError: The header has another value.
    """
    value = headers.get(STREAM_HEADER)
    if value is None:
        return StreamForm.RESUMABLE if RESUME_HEADER in headers else default
    if value not in _FORMS:
        raise invalid(STREAM_HEADER, f"{STREAM_HEADER} is {shown(value)}; expected {' or '.join(_FORMS)}")
    return _FORMS[value]


def default_form(gateway: Gateway) -> StreamForm:
    """Return the form of a stream whose client asks for none."""
    return StreamForm.RESUMABLE if gateway.limits.resumable_streams else StreamForm.STANDARD


async def _render(gateway: Gateway, metadata: RequestMetadata, final: SendFinal) -> Response:
    answer = await _answer(gateway, metadata, final)
    if answer.status_code == 200 or not final.outcome.ok:
        answer.headers.update(lateness_headers(final.attainment))
    return answer


async def _answer(gateway: Gateway, metadata: RequestMetadata, final: SendFinal) -> Response:
    if not final.outcome.ok:
        return error_answer(from_outcome(final.outcome, final.detail))
    try:
        return Json(await answer_of(gateway, metadata, final))
    except ApiError as error:
        return error_answer(error)
    except QlmError as error:
        return error_answer(from_qlm(error))

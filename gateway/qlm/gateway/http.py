"""POST /v1/completions and /v1/chat/completions."""

from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from qlm.domain.ports.tracing import HTTP_METHOD, HTTP_ROUTE, HTTP_STATUS
from qlm.domain.request import AnswerKind, RequestCard
from qlm.gateway.accept import Prepared, open_seat, prepare, publish
from qlm.gateway.answers import Json, Later, StreamAnswer, WholeAnswer, error_answer
from qlm.gateway.attending import begin, leave, refusable
from qlm.gateway.errors import CLIENT_CLOSED, ApiError, from_outcome, invalid, shown
from qlm.gateway.fields.requests import AcceptedRequest
from qlm.gateway.gateway import Gateway
from qlm.gateway.hub import Seat
from qlm.gateway.objective import tier_of
from qlm.gateway.schema import Body, StreamOptions, parse_chat, parse_completion, parse_json
from qlm.gateway.session import Mode
from qlm.gateway.session_events import SendFinal
from qlm.gateway.shapes import StreamShape, answer_object
from qlm.gateway.sinks import NoSink, StreamSink, WholeSink
from qlm.gateway.tracing import Attempt

STREAM_HEADER: Final = "x-qlm-stream"

Created = WholeAnswer | StreamAnswer | Later[AcceptedRequest]
"""What becomes of a request that is accepted."""


async def create_completion(gateway: Gateway, request: HttpRequest) -> Created:
    """Answer POST /v1/completions: text after a prompt, likewise."""
    return await _create(gateway, request, AnswerKind.COMPLETION, parse_completion)


async def create_chat_completion(gateway: Gateway, request: HttpRequest) -> Created:
    """Answer POST /v1/chat/completions: the next message, whole, as a stream, or later (202)."""
    return await _create(gateway, request, AnswerKind.CHAT, parse_chat)


async def read_body(request: HttpRequest, bytes_max: int) -> bytes:
    """Read a body.

    Raises:
        ApiError: It is larger than allowed; the rest of it is not read.
    """
    body = bytearray()
    async for part in _parts(request):
        body += part
        if len(body) > bytes_max:
            message = f"the body has more than {bytes_max} bytes; expected at most that"
            raise ApiError(
                status=413, message=message, code="body_too_large", headers={"connection": "close"}
            )
    return bytes(body)


async def _parts(request: HttpRequest) -> AsyncIterator[bytes]:
    try:
        async for part in request.stream():
            yield part
    except ClientDisconnect as error:
        raise ApiError(status=CLIENT_CLOSED, message="the client left", code="client_closed") from error


def lower_headers(request: HttpRequest) -> dict[str, str]:
    """Headers by name in lower case; of several with one name, the first."""
    headers: dict[str, str] = {}
    for name, value in request.scope["headers"]:
        headers.setdefault(name.decode("latin-1"), value.decode("latin-1").strip())
    return headers


async def _create(
    gateway: Gateway, request: HttpRequest, kind: AnswerKind, parse: Callable[[dict[str, Any]], Body]
) -> Created:
    headers = lower_headers(request)
    detached = "respond-async" in headers.get("prefer", "").lower()
    attempt = _attempt(gateway, request, kind, headers)
    with refusable(gateway, attempt):
        plain = parse_json(await read_body(request, gateway.limits.body_bytes_max))
        attempt.model = plain.get("model")
        body = parse(plain)
        prepared = await prepare(gateway, body, plain, headers, detached=detached)
        attempt.id = prepared.card.id
        if detached:
            return await _respond_async(gateway, prepared)
        if body.stream:
            return await _stream(gateway, body, prepared, headers)
        return await _whole(gateway, body, prepared)


def _attempt(gateway: Gateway, request: HttpRequest, kind: AnswerKind, headers: Mapping[str, str]) -> Attempt:
    return Attempt(
        kind=kind,
        arrival_ns=gateway.clock.now_ns(),
        headers=headers,
        call={HTTP_METHOD: request.method, HTTP_ROUTE: request.url.path},
        answered=lambda error: {HTTP_STATUS: error.status},
    )


async def _respond_async(gateway: Gateway, prepared: Prepared) -> Later[AcceptedRequest]:
    card = prepared.card
    if prepared.request is not None:
        seat = None
        if card.answer.stop:
            # Engines do not know stop strings: somebody has to watch for them.
            seat = open_seat(gateway, card, NoSink(), Mode.BACKGROUND, grace_s=0, counted=True)
        await publish(gateway, prepared.request, card, seat, "async")
    location = f"/v1/requests/{card.id}"
    content: AcceptedRequest = {
        "id": card.id,
        "object": "qlm.request",
        "model": card.model,
        "status": prepared.state,
    }
    headers = {"location": location, "preference-applied": "respond-async", "x-request-id": card.id}
    return Later(content, headers)


async def _stream(
    gateway: Gateway, body: Body, prepared: Prepared, headers: Mapping[str, str]
) -> StreamAnswer:
    card = prepared.card
    options = body.stream_options or StreamOptions()
    shape = StreamShape(
        card,
        tier_of(card.slo, gateway.limits),
        resumable=wants_resumable(gateway, headers),
        include_usage=options.include_usage,
        continuous_usage=options.continuous_usage_stats,
    )
    sink = StreamSink(shape, shown=0)
    seat = await begin(gateway, body, prepared, sink, Mode.STREAM)
    return stream_answer(gateway, seat, sink)


async def _whole(gateway: Gateway, body: Body, prepared: Prepared) -> WholeAnswer:
    card, sink = prepared.card, WholeSink()
    seat = await begin(gateway, body, prepared, sink, Mode.WHOLE)
    gone = partial(leave, gateway, seat)
    return WholeAnswer(sink, gone, {"x-request-id": card.id}, partial(_render, gateway, card))


def stream_answer(gateway: Gateway, seat: Seat, sink: StreamSink) -> StreamAnswer:
    """The response that streams what a seat's session sends."""
    open_streams = gateway.metrics.open_streams
    open_streams.inc()
    gone = partial(leave, gateway, seat)
    return StreamAnswer(sink, gone, open_streams.dec, {"x-request-id": seat.card.id})


def wants_resumable(gateway: Gateway, headers: Mapping[str, str]) -> bool:
    """Whether a stream carries `id:` lines and comments, or data lines only, as vLLM's streams do.

    Raises:
        ApiError: The header is neither.
    """
    asked = headers.get(STREAM_HEADER)
    if asked is None:
        return gateway.limits.resumable_streams
    if asked not in ("resumable", "plain"):
        raise invalid(STREAM_HEADER, f"{STREAM_HEADER} is {shown(asked)}; expected resumable or plain")
    return asked == "resumable"


def _render(gateway: Gateway, card: RequestCard, final: SendFinal) -> Response:
    if final.outcome.ok:
        return Json(answer_object(card, final, tier_of(card.slo, gateway.limits)))
    return error_answer(from_outcome(final.outcome, final.detail))

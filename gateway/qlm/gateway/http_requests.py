"""/v1/requests: what became of a request, on any gateway; cancelling it; going on with its stream."""

from typing import Final, cast

from starlette.requests import Request as HttpRequest

from qlm.domain.ids import RequestId
from qlm.domain.request import RequestRecord
from qlm.gateway.answers import Json, StreamAnswer
from qlm.gateway.attending import come_back
from qlm.gateway.errors import from_outcome, invalid, shown
from qlm.gateway.fields.requests import RequestAnswer, RequestStatus
from qlm.gateway.gateway import Gateway
from qlm.gateway.http import lower_headers, stream_answer, wants_resumable
from qlm.gateway.lookup import describe, final_answer, known_request
from qlm.gateway.objective import tier_of
from qlm.gateway.shapes import StreamShape, answer_object
from qlm.gateway.sinks import StreamSink

OFFSET_MAX: Final = 2**31
_DIGITS_MAX: Final = 20


async def get_request(gateway: Gateway, request: HttpRequest) -> Json[RequestAnswer]:
    """Answer GET /v1/requests/{id}: the state of a request, and OpenAI's answer object once it has one."""
    record = await _known(gateway, request)
    status = cast("RequestAnswer", describe(gateway, record))
    headers = {"x-request-id": record.card.id}
    if record.outcome is None:
        return Json(status, headers)
    final = await final_answer(gateway, record)
    if record.outcome.ok:
        status["response"] = answer_object(record.card, final, tier_of(record.card.slo, gateway.limits))
        return Json(status, headers)
    # The question was how the request stands, and that is answered: the bad end is in the body.
    status["error"] = from_outcome(record.outcome, final.detail).body()["error"]
    return Json(status, headers)


async def cancel_request(gateway: Gateway, request: HttpRequest) -> Json[RequestStatus]:
    """Answer DELETE /v1/requests/{id}: cancel; what runs ends when its engine has let go."""
    record = await _known(gateway, request)
    after = await gateway.store.cancel(record.card.id)
    return Json(describe(gateway, after or record), {"x-request-id": record.card.id})


async def resume_stream(gateway: Gateway, request: HttpRequest) -> StreamAnswer:
    """Answer GET /v1/requests/{id}/events?offset=&include_usage=: the rest of a stream."""
    record = await _known(gateway, request)
    shown = _offset(request)
    shape = StreamShape(
        record.card,
        tier_of(record.card.slo, gateway.limits),
        resumable=wants_resumable(gateway, lower_headers(request)),
        include_usage=request.query_params.get("include_usage") == "true",
    )
    sink = StreamSink(shape, shown)
    seat = come_back(gateway, record, sink, shown)
    return stream_answer(gateway, seat, sink)


async def _known(gateway: Gateway, request: HttpRequest) -> RequestRecord:
    return await known_request(gateway, RequestId(request.path_params["id"]))


def _offset(request: HttpRequest) -> int:
    """Output tokens that the client has been shown."""
    name, text = "Last-Event-ID", request.headers.get("last-event-id")
    if text is None:
        name, text = "offset", request.query_params.get("offset", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text) <= OFFSET_MAX):
        raise invalid(name, f"{name} is {shown(text)}; expected a number of output tokens")
    return int(text)

"""/v1/requests: the state of a request on any gateway, cancelling and erasing it, and resuming its stream."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, cast

from starlette.requests import Request as HttpRequest

from qlm.domain.request import RequestRecord
from qlm.gateway.api.errors import ApiError, from_outcome, invalid, shown, unavailable
from qlm.gateway.api.fields.requests import DeletedRequest, RequestAnswer, RequestStatus
from qlm.gateway.api.ids import request_id
from qlm.gateway.api.objective import tier_of
from qlm.gateway.api.openai_shapes import StreamForm, StreamShape, first_of_each_prompt
from qlm.gateway.api.reasons import BY_CLIENT
from qlm.gateway.http.completions import RESUME_HEADER, lower_headers, stream_answer, stream_form
from qlm.gateway.http.derendered import is_replayed, sink_of
from qlm.gateway.http.families.answers import family_object
from qlm.gateway.http.keys.check import key_tenant
from qlm.gateway.http.responses import Json, StreamAnswer
from qlm.gateway.sessions.families.erasing import erase
from qlm.gateway.sessions.families.joint_status import joint_status
from qlm.gateway.sessions.families.members import cancel_all, members_of, stored_members
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.lookup import final_answer, known_request, request_status
from qlm.gateway.sessions.resume import resume
from qlm.gateway.sessions.unattended import match_stops

OFFSET_MAX: Final = 2**31
_DIGITS_MAX: Final = 20


async def get_request(gateway: Gateway, request: HttpRequest) -> Json[RequestAnswer]:
    """Answer GET /v1/requests/{id}: the state of a request, and OpenAI's answer object once it has one."""
    record = await _known(gateway, request)
    headers = {"x-request-id": record.metadata.id}
    members = await members_of(gateway.store, gateway.load, record)
    if (running := next((each for each in members if each.outcome is None), None)) is not None:
        for each in members:
            match_stops(gateway.hub, each)
        status = _joint_status(gateway, running, members)
        status["id"] = record.metadata.id
        return Json(status, headers)
    finals = [await final_answer(gateway, each) for each in members]
    final = next((each for each in finals if not each.outcome.ok), finals[0])
    ended = replace(record, outcome=final.outcome)
    status = _joint_status(gateway, ended, members)
    if final.outcome.ok:
        try:
            answers = [(each.metadata, end) for each, end in zip(members, finals, strict=True)]
            status["response"] = await family_object(gateway, answers)
        except ApiError as error:
            status["error"] = error.body()["error"]
        return Json(status, headers)
    # 200: the client asked for the state, and the bad end is part of it.
    status["error"] = from_outcome(final.outcome, final.detail).body()["error"]
    return Json(status, headers)


async def cancel_request(gateway: Gateway, request: HttpRequest) -> Json[RequestStatus]:
    """Answer POST /v1/requests/{id}/cancel: cancel; a running one ends once its engine has aborted it."""
    return await cancel(gateway, request, BY_CLIENT)


async def delete_request(gateway: Gateway, request: HttpRequest) -> Json[DeletedRequest]:
    """Answer DELETE /v1/requests/{id}: erase prompt and answer; a request that runs is cancelled first."""
    record = await _known(gateway, request)
    id = record.metadata.id
    if not await erase(gateway, await stored_members(gateway.store, record)):
        raise unavailable(f"request {id} has not ended since it was cancelled", "request_ending")
    return Json({"id": id, "object": "qlm.request", "deleted": True}, {"x-request-id": id})


async def cancel(gateway: Gateway, request: HttpRequest, why: str) -> Json[RequestStatus]:
    """Cancel the request that the path names; `why` says on whose behalf."""
    record = await _known(gateway, request)
    after = await cancel_all(gateway.store, record, why)
    return Json(_status(gateway, after), {"x-request-id": record.metadata.id})


async def resume_stream(gateway: Gateway, request: HttpRequest) -> StreamAnswer:
    """Answer GET /v1/requests/{id}/events?offset=&include_usage=: the rest of a stream."""
    record = await _known(gateway, request)
    shown = _offset(request)
    shape = StreamShape(
        record.metadata,
        tier_of(record.metadata.slo, gateway.limits),
        fingerprint=gateway.models.fingerprint(record.metadata.answers_as),
        form=stream_form(lower_headers(request), default=StreamForm.RESUMABLE),
        include_usage=request.query_params.get("include_usage") == "true",
    )
    sink = sink_of(gateway, record.metadata, shape, shown)
    grace_s, replays = gateway.limits.resume_grace_stream_s, is_replayed(record.metadata)
    subscription = resume(gateway.hub, record.metadata, sink, shown, grace_s, replays=replays)
    return stream_answer(gateway, subscription, sink)


def _joint_status(gateway: Gateway, shown: RequestRecord, members: Sequence[RequestRecord]) -> RequestAnswer:
    status = _status(gateway, shown)
    if len(members) == 1:
        return cast("RequestAnswer", status)
    prompts = first_of_each_prompt([each.metadata for each in members])
    return joint_status(status, [_status(gateway, each) for each in members], prompts)


def _status(gateway: Gateway, record: RequestRecord) -> RequestStatus:
    return request_status(record, gateway.limits, gateway.clock.now_ns())


async def _known(gateway: Gateway, request: HttpRequest) -> RequestRecord:
    id = request_id(request.path_params["id"])
    return await known_request(gateway.store, gateway.load, id, key_tenant(request))


def _offset(request: HttpRequest) -> int:
    """Return the number of output tokens that the client has been shown; the header wins."""
    given = {
        "Last-Event-ID": request.headers.get(RESUME_HEADER),
        "offset": request.query_params.get("offset"),
    }
    return next(iter([_tokens(name, text) for name, text in given.items() if text is not None]), 0)


def _tokens(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text) <= OFFSET_MAX):
        raise invalid(name, f"{name} is {shown(text)}; expected a number of output tokens")
    return int(text)

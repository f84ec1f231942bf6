"""Responses as clients see them: now, at their end, and as events."""

from dataclasses import dataclass
from http import HTTPStatus

from qlm.domain.outcome import Outcome
from qlm.domain.request import RequestMetadata, RequestRecord, RequestState
from qlm.domain.shown import cut
from qlm.gateway.api.errors import ApiError, from_outcome
from qlm.gateway.api.fields.openai import AnswerMessage, ChatChoice
from qlm.gateway.api.fields.responses_api import ResponseObject
from qlm.gateway.api.ids import RESPONSE_PREFIX, request_id
from qlm.gateway.api.objective import tier_of
from qlm.gateway.api.openai_shapes import StreamForm
from qlm.gateway.api.responses_api.events import ResponseEvents
from qlm.gateway.api.responses_api.objects import (
    ended_status,
    output_items,
    response_object,
    response_usage,
)
from qlm.gateway.api.responses_api.state import ResponseState, read_state
from qlm.gateway.core.session_events import SendFinal
from qlm.gateway.http.derendered import answer_of
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.lookup import final_answer, known_request


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response: its request, and what it shows of its body.

    Attributes:
        metadata: The request.
        state: What it shows of its body.
        record: The record of the request; None if it was queued just now.
    """

    metadata: RequestMetadata
    state: ResponseState
    record: RequestRecord | None = None


async def known_response(
    gateway: Gateway, id: str, tenant: str | None, param: str = "id", which: str = ""
) -> StoredResponse:
    """Return the response of an id, as a caller of a tenant may see it; None for one who may see all.

    Args:
        gateway: The gateway.
        id: The id.
        tenant: The tenant; None for one who may see all.
        param: Field of the client with the id.
        which: What errors add to the id.

    Raises:
        ApiError: There is none, which has its id as the client knows it; or it is not known yet.
    """
    try:
        record = await known_request(gateway.store, gateway.load, request_id(id), tenant)
        state = read_state(record.metadata)
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        state = None
    if state is None or not state.stored or not id.startswith(RESPONSE_PREFIX):
        why = "its id is unknown, it was deleted or not to be stored, or it has expired"
        message = f"response {cut(id)}{which} not found: {why}"
        raise ApiError(status=404, message=message, param=param, code="response_not_found")
    return StoredResponse(record.metadata, state, record)


async def response_now(gateway: Gateway, found: StoredResponse) -> ResponseObject:
    """Return a response in its present state; one that is being cancelled counts as cancelled.

    One whose engine is only being stopped at a stop string has its answer.

    Raises:
        ApiError: Its answer cannot be made now: its render tier is away.
    """
    record = found.record
    if record is not None and record.settled:
        return await ended_response(gateway, found, await final_answer(gateway, record))
    status = "queued" if record is None or record.state is RequestState.QUEUED else "in_progress"
    if record is not None and record.end_asked is Outcome.CANCELLED:
        status = "cancelled"
    return response_object(found.metadata, found.state, tier_of(found.metadata.slo, gateway.limits), status)


async def ended_response(gateway: Gateway, found: StoredResponse, final: SendFinal) -> ResponseObject:
    """Return a response at its end.

    Raises:
        ApiError: Its answer cannot be made now: its render tier is away.
    """
    metadata, status = found.metadata, ended_status(final)
    tier = tier_of(metadata.slo, gateway.limits)
    if not final.outcome.ok:
        error = from_outcome(final.outcome, final.detail)
        return response_object(metadata, found.state, tier, status, error=error)
    choice = await _choice_of(gateway, metadata, final)
    scored = choice["logprobs"]
    return response_object(
        *(metadata, found.state, tier, status),
        output=output_items(
            *(metadata.id, choice["message"], found.state.tool_names, status),
            scored["content"] if scored else (),
        ),
        usage=response_usage(metadata, final),
    )


async def answer_of_response(
    gateway: Gateway, state: ResponseState, metadata: RequestMetadata, final: SendFinal
) -> ResponseObject:
    """Return a response that ended well; see `ended_response`."""
    return await ended_response(gateway, StoredResponse(metadata, state), final)


async def message_of(gateway: Gateway, metadata: RequestMetadata, final: SendFinal) -> AnswerMessage:
    """Return the message of an answer that ended well.

    Raises:
        ApiError: The render tier of its model fails, is away, or is not known here.
    """
    return (await _choice_of(gateway, metadata, final))["message"]


async def _choice_of(gateway: Gateway, metadata: RequestMetadata, final: SendFinal) -> ChatChoice:
    answer = await answer_of(gateway, metadata, final)
    assert answer["object"] == "chat.completion"
    choice: ChatChoice = answer["choices"][0]
    return choice


def events_of(
    gateway: Gateway,
    found: StoredResponse,
    form: StreamForm,
    *,
    after: int = -1,
    text_before: str = "",
    tokens_before: int = 0,
) -> ResponseEvents:
    """Return what formats the events of a response; see `ResponseEvents`."""
    return ResponseEvents(
        *(found.metadata, found.state, tier_of(found.metadata.slo, gateway.limits)),
        after=after,
        text_before=text_before,
        tokens_before=tokens_before,
        comments=form is not StreamForm.PLAIN,
    )

"""POST /v1/messages and /v1/messages/count_tokens."""

from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from qlm.domain.errors import QlmError
from qlm.domain.request import AnswerKind, RequestMetadata
from qlm.gateway.api.bodies.json_object import parse_json
from qlm.gateway.api.errors import ApiError, from_outcome, from_qlm, invalid, shown
from qlm.gateway.api.fields.messages_api import TokenCount
from qlm.gateway.api.lateness import lateness_headers
from qlm.gateway.api.messages_api.blocks import image_places
from qlm.gateway.api.messages_api.body import NEUTRAL, CountBody, MessagesBody, parse_count, parse_messages
from qlm.gateway.api.messages_api.chat import NAMES, as_chat
from qlm.gateway.api.messages_api.events import MessageEvents
from qlm.gateway.api.messages_api.objects import message_object
from qlm.gateway.api.objective import tier_of
from qlm.gateway.api.openai_shapes import StreamForm
from qlm.gateway.api.schema import parse_chat
from qlm.gateway.core.sdk_retries import SdkCall
from qlm.gateway.core.session import Mode
from qlm.gateway.core.session_events import SendFinal
from qlm.gateway.http.attempts import attempt_of, fields_renamed, images_renamed
from qlm.gateway.http.completions import (
    lower_headers,
    prepare_or_take_up,
    read_body,
    stream_form,
    whole_left,
)
from qlm.gateway.http.derendered import sink_of
from qlm.gateway.http.document.accepts import accepts
from qlm.gateway.http.messages_api.errors import error_answer, id_headers, in_its_shape
from qlm.gateway.http.opened import OpenedSink
from qlm.gateway.http.responses import Json, StreamAnswer, WholeAnswer
from qlm.gateway.http.responses_api.shown import message_of
from qlm.gateway.http.sinks import WholeSink
from qlm.gateway.observability.refusals import refusals_recorded
from qlm.gateway.render.rendering import render
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.intake import Prepared


@accepts(MessagesBody, neutral=NEUTRAL)
@in_its_shape
async def create_message(gateway: Gateway, request: HttpRequest) -> WholeAnswer | StreamAnswer:
    """Answer POST /v1/messages: the next message; whole, or as a stream."""
    headers = lower_headers(request)
    attempt = attempt_of(gateway, request, AnswerKind.CHAT, headers)
    with refusals_recorded(attempt, gateway.metrics, gateway.spans, gateway.clock), fields_renamed(NAMES):
        plain = parse_json(await read_body(request, gateway.limits.body_bytes_max))
        attempt.model = plain.get("model")
        body = parse_messages(plain)
        thinking = _thinking(gateway, body)
        form = stream_form(headers, default=StreamForm.STANDARD)
        if form is StreamForm.RESUMABLE:
            raise invalid(
                "x-qlm-stream", "x-qlm-stream is resumable; expected plain: no client of this API resumes"
            )
        chat = as_chat(body, plain)
        with images_renamed(chat, image_places(body.messages)):
            whole = chat | {"message": plain}  # retries have to be equal as a whole
            prepared, call = await prepare_or_take_up(gateway, parse_chat(chat), whole, headers, form)
        attempt.id = prepared.metadata.id
        if body.stream:
            return await _stream(gateway, prepared, form, thinking=thinking)
        return await _whole(gateway, prepared, call, thinking=thinking)


@accepts(CountBody, neutral=NEUTRAL)
@in_its_shape
async def count_tokens(gateway: Gateway, request: HttpRequest) -> Json[TokenCount]:
    """Answer POST /v1/messages/count_tokens: the tokens of the prompt that a conversation makes."""
    with fields_renamed(NAMES):
        plain = parse_json(await read_body(request, gateway.limits.body_bytes_max))
        counted = parse_count(plain)
        chat = as_chat(counted, plain)
        body = parse_chat(chat)
        served = gateway.models.chosen(body.model)
        with images_renamed(chat, image_places(counted.messages)):
            rendered = await render(gateway.render_tiers, served.spec.id, body, chat)
        if rendered is not None:
            return Json({"input_tokens": len(rendered.prompt_ids)})
        return Json({"input_tokens": len(await gateway.encoder.encode(body, served.tokenizer))})


def _thinking(gateway: Gateway, body: MessagesBody | CountBody) -> bool:
    """Return whether the answer shows the reasoning of the model.

    Raises:
        ApiError: It shall, and the model does not reason.
    """
    asked = body.thinking
    if asked is None or asked.type == "disabled" or asked.display == "omitted":
        return False
    model = gateway.models.chosen(body.model).spec.id
    tier = gateway.render_tiers.get(model)
    if asked.type == "enabled" and (tier is None or not tier.reasons):
        given = shown(asked.model_dump(exclude_none=True))
        message = f"thinking is {given}; expected disabled or adaptive: {model} is not configured to reason"
        raise invalid("thinking", message, "unsupported_value")
    return True


async def _stream(gateway: Gateway, prepared: Prepared, form: StreamForm, *, thinking: bool) -> StreamAnswer:
    metadata = prepared.metadata
    tier = tier_of(metadata.slo, gateway.limits)
    shape = MessageEvents(metadata, tier, thinking=thinking, pings=form is not StreamForm.PLAIN)
    sink = OpenedSink(sink_of(gateway, metadata, shape, 0, repeatable=False), shape.opening())
    subscription = await gateway.intake.accept(prepared, sink, Mode.STREAM)
    open_streams = gateway.metrics.open_streams
    open_streams.inc()
    return StreamAnswer(
        *(sink, partial(gateway.hub.detach, subscription), open_streams.dec, id_headers(metadata.id)),
        refused=partial(error_answer, request_id=metadata.id),
    )


async def _whole(
    gateway: Gateway, prepared: Prepared, call: SdkCall | None, *, thinking: bool
) -> WholeAnswer:
    metadata, sink = prepared.metadata, WholeSink()
    subscription = await gateway.intake.accept(prepared, sink, Mode.WHOLE)
    return WholeAnswer(
        *(sink, whole_left(gateway, subscription, call), id_headers(metadata.id)),
        partial(_render, gateway, metadata, thinking),
        refused=partial(error_answer, request_id=metadata.id),
    )


async def _render(gateway: Gateway, metadata: RequestMetadata, thinking: bool, final: SendFinal) -> Response:
    answer = await _rendered(gateway, metadata, thinking, final)
    if answer.status_code == 200 or not final.outcome.ok:
        answer.headers.update(lateness_headers(final.attainment))
    return answer


async def _rendered(
    gateway: Gateway, metadata: RequestMetadata, thinking: bool, final: SendFinal
) -> Response:
    if not final.outcome.ok:
        return error_answer(from_outcome(final.outcome, final.detail), metadata.id)
    try:
        message = await message_of(gateway, metadata, final)
    except ApiError as error:
        return error_answer(error, metadata.id)
    except QlmError as error:
        return error_answer(from_qlm(error), metadata.id)
    tier = tier_of(metadata.slo, gateway.limits)
    content: Any = message_object(metadata, tier, final, message, thinking=thinking)
    return Json(content)

"""Conversion between protobuf messages and the gateway's values; fields have the names of the HTTP API."""

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any, Final

from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from qlm.domain.request import RequestMetadata, RequestRecord
from qlm.gateway.api.errors import ApiError, from_outcome, invalid, shown
from qlm.gateway.api.lateness import late_ms
from qlm.gateway.api.openai_shapes import usage
from qlm.gateway.api.schema import Body, parse_chat, parse_completion
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.core.session_events import SendFinal
from qlm.gateway.rpc.errors import code_of
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.sessions.idempotency import KEY_HEADER
from qlm.gateway.sessions.lookup import request_status

_PLAIN: Final = frozenset(
    {"model", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed"}
    | {"frequency_penalty", "presence_penalty", "repetition_penalty", "ignore_eos", "skip_special_tokens"}
    | {"include_stop_str_in_output", "priority", "service_tier", "user", "resume_grace_s", "prompt"}
)
"""Fields that the body of the HTTP API has under the same name."""

OF_HTTP_ANSWERS: Final = frozenset(
    {
        "n",
        "echo",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
    }
    | {"include_reasoning", "stream", "stream_options"}
)
"""Fields of the HTTP API that change the form of its answer, which messages here do not have."""

_INPUTS: Final = "expected prompt, prompt_token_ids or messages"


def to_plain(request: pb.GenerateRequest) -> dict[str, Any]:
    """Return a request as a body of the HTTP API; absent fields stay absent."""
    given = {field.name: value for field, value in request.ListFields()}
    plain: dict[str, Any] = {name: value for name, value in given.items() if name in _PLAIN}
    plain |= {name: list(given[name]) for name in ("stop", "stop_token_ids") if name in given}
    if "logit_bias" in given:
        plain["logit_bias"] = {str(id): bias for id, bias in request.logit_bias.items()}
    if "slo" in given:
        plain["slo"] = _slo(request.slo)
    if "more" in given:
        plain |= _more(request.more, request.DESCRIPTOR.fields_by_name)
    match request.WhichOneof("input"):
        case "prompt_token_ids":
            plain["prompt"] = list(request.prompt_token_ids.ids)
        case "messages":
            plain["messages"] = [_message(each) for each in request.messages.messages]
    return plain | {"stream": True}


def parse(request: pb.GenerateRequest, plain: dict[str, Any]) -> Body:
    """Return the checked body of a request; `plain` is that of `to_plain`.

    Raises:
        ApiError: A field is wrong or missing; the message names it.
    """
    if request.WhichOneof("input") is None:
        raise invalid("prompt", f"prompt is missing; {_INPUTS}", "missing_required_parameter")
    return parse_chat(plain) if "messages" in plain else parse_completion(plain)


def with_proto_names(error: ApiError, request: pb.GenerateRequest) -> ApiError:
    """Return an error with the proto's name of its field, where the HTTP API has another."""
    renamed = {}
    if request.WhichOneof("input") == "prompt_token_ids":
        renamed["prompt"] = "prompt_token_ids"
    if request.idempotency_key:
        renamed[KEY_HEADER] = "idempotency_key"
    for old, new in renamed.items():
        if error.param is not None and (error.param + "[").startswith(f"{old}["):
            param = new + error.param.removeprefix(old)
            return replace(error, param=param, message=error.message.replace(old, new, 1))
    return error


def started(
    metadata: RequestMetadata, tier: str, offset: int, fingerprint: str | None = None
) -> pb.GenerateResponse:
    """Return the first message of a stream."""
    first = pb.Started(
        id=metadata.id,
        model=metadata.answers_as,
        prompt_tokens=metadata.prompt_tokens,
        service_tier=tier,
        offset=offset,
        system_fingerprint=fingerprint or "",
    )
    return pb.GenerateResponse(started=first)


def ended(metadata: RequestMetadata, final: SendFinal) -> pb.GenerateResponse:
    """Return the last message of a stream."""
    last = pb.Ended(
        outcome=str(final.outcome),
        finish_reason=final.finish_reason or "",
        usage=_usage(metadata, final),
        met=final.attainment.met,
        late_ms=late_ms(final.attainment),
        **_stop_reason(final),
    )
    return pb.GenerateResponse(ended=last)


def status_message(record: RequestRecord, limits: GatewayLimits, now_ns: int) -> pb.RequestStatus:
    """Return the state of a request."""
    status: Mapping[str, object] = request_status(record, limits, now_ns)
    fields = {name: status[name] for name in pb.RequestStatus.DESCRIPTOR.fields_by_name}
    return ParseDict(fields, pb.RequestStatus())


def answer(metadata: RequestMetadata, final: SendFinal) -> pb.Answer:
    """Return the answer of a request that ended well."""
    return pb.Answer(
        text=final.text,
        token_ids=final.token_ids,
        finish_reason=final.finish_reason or "",
        usage=_usage(metadata, final),
        **_stop_reason(final),
    )


def _usage(metadata: RequestMetadata, final: SendFinal) -> pb.Usage:
    counts = usage(metadata, final.offset)
    return pb.Usage(
        prompt_tokens=counts["prompt_tokens"],
        completion_tokens=counts["completion_tokens"],
        total_tokens=counts["total_tokens"],
        cached_tokens=final.cached_tokens,
    )


def _stop_reason(final: SendFinal) -> dict[str, Any]:
    if final.stop_reason is None:
        return {}
    name = "stop_text" if isinstance(final.stop_reason, str) else "stop_token_id"
    return {name: final.stop_reason}


def error_of(final: SendFinal) -> pb.Error:
    """Return the error of a request that ended badly."""
    error = from_outcome(final.outcome, final.detail)
    return pb.Error(status=code_of(error).value[0], code=error.code or "", message=error.message)


def queues_response(listed: Mapping[str, Any]) -> pb.ListQueuesResponse:
    """Return the queues as the HTTP API lists them."""
    return ParseDict(dict(listed), pb.ListQueuesResponse())


def _more(more: Struct, own: Container[str]) -> dict[str, Any]:
    """Return the further fields of a request.

    Raises:
        ApiError: One of them changes the form of the answer, has a place of its own in the request, or is no
            JSON.
    """
    try:
        given = MessageToDict(more)
    except ValueError as error:
        message = f"more has a value that JSON does not have: {error}; expected finite numbers"
        raise invalid("more", message) from error
    fields = {name: _whole(value) for name, value in given.items()}
    for name, value in fields.items():
        if name in OF_HTTP_ANSWERS:
            expected = "expected no such field over gRPC, whose answers have no place for it: use HTTP"
            raise invalid(name, f"{name} is {shown(value)}; {expected}", "unsupported_value")
        if name in own:
            raise invalid(name, f"more.{name} is {shown(value)}; expected it as the field {name}")
    return fields


def _whole(value: Any) -> Any:
    """Return a value with its whole numbers as such: a Struct has only one kind of number."""
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _slo(slo: pb.Slo) -> dict[str, Any]:
    plain = {field.name: value for field, value in slo.ListFields()}
    if "deadline_at" in plain:
        plain["deadline_at"] = _seconds(slo.deadline_at)
    if "task" in plain:
        plain["task"] = _task(slo.task)
    return plain


def _task(task: pb.Task) -> dict[str, Any]:
    plain = {field.name: value for field, value in task.ListFields()}
    return plain | ({"deadline_at": _seconds(task.deadline_at)} if "deadline_at" in plain else {})


def _seconds(time: Timestamp) -> float:
    return time.seconds + time.nanos / 1e9


def _message(message: pb.Message) -> dict[str, Any]:
    plain = {"role": message.role, "content": message.content}
    return plain | {"name": message.name} if message.name else plain

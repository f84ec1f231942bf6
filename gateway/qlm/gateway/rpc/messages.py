"""Between protobuf messages and what the gateway works with. Fields have the names of the HTTP API."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from google.protobuf.json_format import ParseDict

from qlm.domain.request import RequestCard, RequestRecord
from qlm.gateway.accept import KEY_HEADER
from qlm.gateway.errors import ApiError, from_outcome, invalid
from qlm.gateway.gateway import Gateway
from qlm.gateway.lookup import describe
from qlm.gateway.rpc.errors import code_of
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.schema import Body, parse_chat, parse_completion
from qlm.gateway.session_events import SendFinal
from qlm.gateway.shapes import usage

_PLAIN: Final = frozenset(
    {"model", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed"}
    | {"frequency_penalty", "presence_penalty", "repetition_penalty", "ignore_eos", "skip_special_tokens"}
    | {"include_stop_str_in_output", "priority", "service_tier", "user", "resume_grace_s", "prompt"}
)
"""Fields that are in the body of the HTTP API as they are."""

_INPUTS: Final = "expected prompt, prompt_token_ids or messages"


def to_plain(request: pb.GenerateRequest) -> dict[str, Any]:
    """Write a request as the body that the HTTP API would get; absent fields stay absent."""
    given = {field.name: value for field, value in request.ListFields()}
    plain: dict[str, Any] = {name: value for name, value in given.items() if name in _PLAIN}
    plain |= {name: list(given[name]) for name in ("stop", "stop_token_ids") if name in given}
    if "logit_bias" in given:
        plain["logit_bias"] = {str(id): bias for id, bias in request.logit_bias.items()}
    if "slo" in given:
        plain["slo"] = _slo(request.slo)
    match request.WhichOneof("input"):
        case "prompt_token_ids":
            plain["prompt"] = list(request.prompt_token_ids.ids)
        case "messages":
            plain["messages"] = [_message(each) for each in request.messages.messages]
    return plain | {"stream": True}


def parse(request: pb.GenerateRequest, plain: dict[str, Any]) -> Body:
    """Check a request, written by `to_plain`.

    Raises:
        ApiError: A field is wrong or missing; the message names it.
    """
    if request.WhichOneof("input") is None:
        raise invalid("prompt", f"prompt is missing; {_INPUTS}", "missing_required_parameter")
    return parse_chat(plain) if "messages" in plain else parse_completion(plain)


def in_proto_words(error: ApiError, request: pb.GenerateRequest) -> ApiError:
    """Call a field by its name in the proto, where that is not the one of the HTTP API."""
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


def started(card: RequestCard, tier: str, offset: int) -> pb.GenerateResponse:
    """The first message of a stream."""
    first = pb.Started(
        id=card.id,
        model=card.model,
        prompt_tokens=card.prompt_tokens,
        service_tier=tier,
        offset=offset,
    )
    return pb.GenerateResponse(started=first)


def ended(card: RequestCard, final: SendFinal) -> pb.GenerateResponse:
    """The last message of a stream."""
    last = pb.Ended(
        outcome=str(final.outcome),
        finish_reason=final.finish_reason or "",
        usage=pb.Usage(**usage(card, final.offset)),
    )
    return pb.GenerateResponse(ended=last)


def request_status(gateway: Gateway, record: RequestRecord) -> pb.RequestStatus:
    """How a request stands."""
    told: Mapping[str, object] = describe(gateway, record)
    kept = {name: told[name] for name in pb.RequestStatus.DESCRIPTOR.fields_by_name}
    return ParseDict(kept, pb.RequestStatus())


def answer(card: RequestCard, final: SendFinal) -> pb.Answer:
    """The answer of a request that ended well."""
    return pb.Answer(
        text=final.text,
        token_ids=final.token_ids,
        finish_reason=final.finish_reason or "",
        usage=pb.Usage(**usage(card, final.offset)),
    )


def error_of(final: SendFinal) -> pb.Error:
    """The bad end of a request."""
    error = from_outcome(final.outcome, final.detail)
    return pb.Error(status=code_of(error).value[0], code=error.code or "", message=error.message)


def queues_response(listed: Mapping[str, Any]) -> pb.ListQueuesResponse:
    """The queues, from what the HTTP API tells of them."""
    return ParseDict(dict(listed), pb.ListQueuesResponse())


def _slo(slo: pb.Slo) -> dict[str, Any]:
    plain = {field.name: value for field, value in slo.ListFields()}
    if "deadline_at" in plain:
        plain["deadline_at"] = slo.deadline_at.seconds + slo.deadline_at.nanos / 1e9
    return plain


def _message(message: pb.Message) -> dict[str, Any]:
    plain = {"role": message.role, "content": message.content}
    return plain | {"name": message.name} if message.name else plain

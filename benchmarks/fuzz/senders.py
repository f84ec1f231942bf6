"""Sending of single requests and calls, each with its verdict."""

from collections import Counter
from contextlib import suppress
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from benchmarks.fuzz.http_requests import HttpRequest
from benchmarks.fuzz.rpc_calls import GENERATE, STREAMS, RpcCall
from benchmarks.fuzz.verdict import Finding, judge
from benchmarks.fuzz.wire import BadAnswerError, NoAnswerError, Wire
from benchmarks.steady import answered_ids
from qlm.gateway.rpc.v1 import qlm_pb2 as pb

_UNSERVED: Final = ("/qlm.v1.Qlm/Nothing", "/qlm.v2.Qlm/Generate", "/x")
"""Methods that no server has."""

_UNEXPECTED: Final = frozenset(
    {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.UNAVAILABLE,
     grpc.StatusCode.ABORTED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
)  # fmt: skip


_REFUSED_BYTES: Final = 4 * 2**20
"""Larger bodies are refused before they are read."""


async def send_http(wire: Wire, request: HttpRequest, statuses: Counter[str]) -> Finding | None:
    """Send a request, count its status, and judge its answer."""
    what: str | None = None
    try:
        if request.framed:
            answers = [await wire.ask(request.data, bodiless=request.data.startswith(b"HEAD "))]
        else:
            answers = await wire.tell(request.data)
    except (BadAnswerError, NoAnswerError) as error:
        statuses["none"] += 1
        if len(request.data) > _REFUSED_BYTES:
            return None  # the rest of the body meets a closed connection, and the refusal is lost
        return Finding(part="http", number=request.number, what=f"{type(error).__name__}: {error}")
    for answer in answers:
        statuses[str(answer.status)] += 1
        what = what or judge(request, answer)
    if not answers:
        statuses["closed"] += 1
    return None if what is None else Finding(part="http", number=request.number, what=what)


class RpcSender:
    """Sends calls over one channel."""

    def __init__(self, channel: aio.Channel) -> None:
        """Send over a channel that the caller closes."""
        self._channel = channel

    async def send(self, call: RpcCall, statuses: Counter[str]) -> Finding | None:
        """Send a call, count its status, and judge its answer."""
        received: list[bytes] = []
        try:
            await self._exchange(call, received)
            status = grpc.StatusCode.OK
        except aio.AioRpcError as error:
            status = error.code()
            if wrong := _wrong_status(call, status, error.details() or ""):
                statuses[status.name] += 1
                return Finding(part="rpc", number=call.number, what=wrong)
        statuses[status.name] += 1
        what = wrong_stream(call, received) if status is grpc.StatusCode.OK else None
        return None if what is None else Finding(part="rpc", number=call.number, what=what)

    async def _exchange(self, call: RpcCall, received: list[bytes]) -> None:
        options: dict[str, Any] = {"metadata": call.metadata, "timeout": call.timeout_s}
        one: Any = self._channel.unary_unary(call.method)
        stream: Any = self._channel.unary_stream(call.method)
        if call.method not in STREAMS:
            received.append(await one(call.data, **options))
            return
        async for message in stream(call.data, **options):
            received.append(message)


def _wrong_status(call: RpcCall, status: grpc.StatusCode, details: str) -> str | None:
    if status is grpc.StatusCode.UNAVAILABLE and call.method.endswith("/Resume") and "were shown" in details:
        return None  # an offset beyond the answer, which counts as lost output
    if status in _UNEXPECTED or (status is grpc.StatusCode.UNIMPLEMENTED and call.method not in _UNSERVED):
        return f"{call.method}: {status.name}, {details[:200]!r}"
    return None


def wrong_stream(call: RpcCall, received: list[bytes]) -> str | None:
    """Compare the tokens of a stream with the answer to its own prompt, if nothing else changes that."""
    sent = call.message
    if call.method != GENERATE or sent is None or not sent.ignore_eos:
        return None
    if sent.stop or sent.stop_token_ids or sent.logit_bias or sent.idempotency_key or sent.messages.messages:
        return None
    with suppress(DecodeError):
        messages = [pb.GenerateResponse.FromString(each) for each in received]
        tokens = [id for each in messages for id in each.delta.token_ids]
        prompt_ids = list(sent.prompt.encode()) or list(sent.prompt_token_ids.ids)
        if messages[-1].ended.finish_reason and tokens != answered_ids(prompt_ids, len(tokens)):
            return f"the answer to another prompt: {tokens}"
        return None
    return "messages that cannot be read"

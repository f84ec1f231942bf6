"""The calls of qlm.v1.Qlm."""

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from grpc import aio

from qlm.domain.errors import QlmError
from qlm.domain.ids import RequestId
from qlm.domain.ports.tracing import GRPC_STATUS, RPC_METHOD, RPC_SERVICE, RPC_SYSTEM
from qlm.domain.request import AnswerKind
from qlm.domain.slo import DEADLINE_MAX_MS, DeadlineSlo
from qlm.gateway import admin
from qlm.gateway.accept import KEY_HEADER, Prepared, prepare
from qlm.gateway.attending import begin, come_back, leave, refusable
from qlm.gateway.errors import STOPPING, ApiError, defect, from_qlm, invalid, unavailable
from qlm.gateway.gateway import Gateway
from qlm.gateway.hub import Seat
from qlm.gateway.lookup import final_answer, known_request
from qlm.gateway.objective import MS_MIN, tier_of
from qlm.gateway.rpc import messages
from qlm.gateway.rpc.errors import code_of, message_of, trailers
from qlm.gateway.rpc.sink import RpcSink
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmServicer
from qlm.gateway.schema import Body
from qlm.gateway.session import Mode
from qlm.gateway.tracing import Attempt

_log = logging.getLogger(__name__)

SERVICE: Final[str] = pb.DESCRIPTOR.services_by_name["Qlm"].full_name

_ID_HEADER: Final = "x-request-id"

Context = aio.ServicerContext[Any, Any]
T = TypeVar("T")


class QlmService(QlmServicer):
    """Answers the calls through one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        """Make the service of a gateway."""
        self._gateway = gateway
        self._open: set[RpcSink] = set()

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:
        """Accept a request and stream its answer."""
        await self._answered(context, self._generate(request, context))

    async def Resume(self, request: pb.ResumeRequest, context: Context) -> None:
        """Go on with a stream."""
        await self._answered(context, self._resume(request, context))

    async def Get(self, request: pb.GetRequest, context: Context) -> pb.GetResponse:
        """Tell how a request stands."""
        return await self._answered(context, self._get(request, context))

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        """End a request."""
        return await self._answered(context, self._cancel(request, context))

    async def ListQueues(self, request: pb.ListQueuesRequest, context: Context) -> pb.ListQueuesResponse:
        """List class queues and virtual queues."""
        return await self._answered(context, self._list_queues())

    def break_off(self) -> None:
        """End every open stream: the gateway stops; another one goes on with them."""
        error = unavailable("the gateway is stopping; go on with Resume", STOPPING)
        for sink in tuple(self._open):
            sink.break_off(error)

    async def _generate(self, request: pb.GenerateRequest, context: Context) -> None:
        gateway = self._gateway
        headers = _headers(context)
        attempt = _attempt(gateway, request, headers)
        if request.idempotency_key:
            headers[KEY_HEADER] = request.idempotency_key
        try:
            with refusable(gateway, attempt):
                self._check_size(request)
                plain = messages.to_plain(request)
                body = messages.parse(request, plain)
                prepared = await prepare(gateway, body, plain, headers, default_slo=_objective(context))
                attempt.id = prepared.card.id
            sink = RpcSink(prepared.card)
            seat = await self._undisturbed(_opened(gateway, attempt, body, prepared, sink))
        except QlmError as error:
            raise messages.in_proto_words(from_qlm(error), request) from error
        except ApiError as error:
            raise messages.in_proto_words(error, request) from error
        await self._pour(context, seat, sink, offset=0)

    async def _resume(self, request: pb.ResumeRequest, context: Context) -> None:
        record = await known_request(self._gateway, _id(request.id))
        sink = RpcSink(record.card)
        seat = come_back(self._gateway, record, sink, request.offset)
        await self._pour(context, seat, sink, offset=request.offset)

    async def _get(self, request: pb.GetRequest, context: Context) -> pb.GetResponse:
        record = await known_request(self._gateway, _id(request.id))
        await context.send_initial_metadata(((_ID_HEADER, record.card.id),))
        response = pb.GetResponse(request=messages.request_status(self._gateway, record))
        if record.outcome is not None:
            final = await final_answer(self._gateway, record)
            if final.outcome.ok:
                response.answer.CopyFrom(messages.answer(record.card, final))
            else:
                response.error.CopyFrom(messages.error_of(final))
        return response

    async def _cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        record = await known_request(self._gateway, _id(request.id))
        await context.send_initial_metadata(((_ID_HEADER, record.card.id),))
        after = await self._gateway.store.cancel(record.card.id)
        return pb.CancelResponse(request=messages.request_status(self._gateway, after or record))

    async def _list_queues(self) -> pb.ListQueuesResponse:
        return messages.queues_response(await admin.queues(self._gateway))

    async def _pour(self, context: Context, seat: Seat, sink: RpcSink, offset: int) -> None:
        """Write what a session sends until it ends, or the client has gone.

        Raises:
            ApiError: The answer ended badly.
        """
        card, metrics = seat.card, self._gateway.metrics
        metrics.open_streams.inc()
        self._open.add(sink)
        try:
            await context.send_initial_metadata(((_ID_HEADER, card.id),))
            await context.write(messages.started(card, tier_of(card.slo, self._gateway.limits), offset))
            while (message := await sink.take()) is not None:
                await context.write(message)
        except BaseException:
            leave(self._gateway, seat)
            raise
        finally:
            self._open.discard(sink)
            metrics.open_streams.dec()
        if sink.error is not None:
            raise replace(sink.error, headers={**sink.error.headers, _ID_HEADER: card.id})

    async def _undisturbed(self, opening: Awaitable[Seat]) -> Seat:
        """Bring a request to the queue whole, also if its client leaves meanwhile; then it has left."""

        def left(opened: asyncio.Future[Seat]) -> None:
            if not opened.cancelled() and opened.exception() is None:
                leave(self._gateway, opened.result())

        task = asyncio.ensure_future(opening)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(left)
            raise

    async def _answered(self, context: Context, call: Awaitable[T]) -> T:
        """Answer a call; an error becomes its status."""
        try:
            return await call
        except ApiError as error:
            failure = error
        except QlmError as error:
            failure = from_qlm(error)
        except Exception as error:
            if context.done():  # what failed is the writing to a client that has gone
                raise asyncio.CancelledError from error
            id = self._gateway.new_id()
            _log.exception("gRPC call %s failed", id, extra={"request_id": id})
            failure = defect(error, id)
        if _ID_HEADER not in failure.headers:
            failure = replace(failure, headers={**failure.headers, _ID_HEADER: self._gateway.new_id()})
        await context.abort(code_of(failure), message_of(failure), trailers(failure))

    def _check_size(self, request: pb.GenerateRequest) -> None:
        bytes_max = self._gateway.limits.body_bytes_max
        if (size := request.ByteSize()) > bytes_max:
            message = f"the message has {size} bytes; expected at most {bytes_max} (limits.body_bytes_max)"
            headers = {"x-should-retry": "false"}
            raise ApiError(status=413, message=message, code="body_too_large", headers=headers)


async def _opened(gateway: Gateway, attempt: Attempt, body: Body, prepared: Prepared, sink: RpcSink) -> Seat:
    with refusable(gateway, attempt):
        return await begin(gateway, body, prepared, sink, Mode.STREAM)


def _attempt(gateway: Gateway, request: pb.GenerateRequest, headers: Mapping[str, str]) -> Attempt:
    return Attempt(
        kind=AnswerKind.CHAT if request.WhichOneof("input") == "messages" else AnswerKind.COMPLETION,
        arrival_ns=gateway.clock.now_ns(),
        headers=headers,
        call={RPC_SYSTEM: "grpc", RPC_SERVICE: SERVICE, RPC_METHOD: "Generate"},
        answered=lambda error: {GRPC_STATUS: code_of(error).value[0]},
        model=request.model,
    )


def _headers(context: Context) -> dict[str, str]:
    """Metadata of a call by name; of several with one name, the first."""
    headers: dict[str, str] = {}
    for name, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            headers.setdefault(name, value.strip())
    return headers


def _objective(context: Context) -> DeadlineSlo | None:
    """The call's deadline as an objective; None if it has none, or one beyond what an objective may be.

    Raises:
        ApiError: It has passed.
    """
    left_s = context.time_remaining()
    if left_s is None or left_s * 1000 > DEADLINE_MAX_MS:
        return None
    if left_s * 1000 < MS_MIN:
        raise ApiError(status=504, message="the call's deadline passed on the way here", code="expired")
    return DeadlineSlo(deadline_ms=left_s * 1000)


def _id(text: str) -> RequestId:
    if not text:
        raise invalid("id", 'id is ""; expected the id of a request', "missing_required_parameter")
    return RequestId(text)

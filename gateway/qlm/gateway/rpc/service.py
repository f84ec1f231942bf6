"""The calls of qlm.v1.Qlm."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from grpc import aio

from qlm.domain.errors import QlmError
from qlm.domain.ids import RequestId
from qlm.domain.ports.api_keys import Scope
from qlm.domain.ports.tracing import GRPC_STATUS, RPC_METHOD, RPC_SERVICE, RPC_SYSTEM
from qlm.domain.request import AnswerKind, RequestRecord
from qlm.domain.slo import DEADLINE_MAX_MS, DeadlineSlo
from qlm.gateway.api.errors import STOPPING, ApiError, from_qlm, invalid, unavailable
from qlm.gateway.api.ids import request_id
from qlm.gateway.api.objective import MS_MIN, OBJECTIVE_HEADERS, tier_of
from qlm.gateway.api.reasons import BY_CLIENT
from qlm.gateway.api.translate import KEY_TENANT
from qlm.gateway.core.access import AccessRules
from qlm.gateway.core.session import Mode
from qlm.gateway.keys.asking import asked_key, operator_refusal
from qlm.gateway.observability.refusals import refusals_recorded
from qlm.gateway.observability.tracing import Attempt
from qlm.gateway.rpc import messages
from qlm.gateway.rpc.errors import code_of
from qlm.gateway.rpc.refusal import Context, refuse
from qlm.gateway.rpc.sink import RpcSink
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmServicer
from qlm.gateway.sessions.families.members import cancel_all, members_of
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.idempotency import KEY_HEADER
from qlm.gateway.sessions.intake import Prepared
from qlm.gateway.sessions.lookup import final_answer, known_request
from qlm.gateway.sessions.operators.queue_listing import list_queues
from qlm.gateway.sessions.resume import resume
from qlm.gateway.sessions.subscription import Subscription
from qlm.gateway.sessions.unattended import match_stops

SERVICE: Final[str] = pb.DESCRIPTOR.services_by_name["Qlm"].full_name

_ID_HEADER: Final = "x-request-id"

T = TypeVar("T")


class QlmService(QlmServicer):
    """Answers calls through one gateway."""

    def __init__(self, gateway: Gateway, rules: AccessRules) -> None:
        self._gateway = gateway
        self._rules = rules
        self._open: set[RpcSink] = set()

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:
        """Accept a request and stream its answer."""
        await self._answered(context, self._generate(request, context))

    async def Resume(self, request: pb.ResumeRequest, context: Context) -> None:
        """Resume a stream."""
        await self._answered(context, self._resume(request, context))

    async def Get(self, request: pb.GetRequest, context: Context) -> pb.GetResponse:
        """Return the state of a request."""
        return await self._answered(context, self._get(request, context))

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        """Cancel a request."""
        return await self._answered(context, self._cancel(request, context))

    async def ListQueues(self, request: pb.ListQueuesRequest, context: Context) -> pb.ListQueuesResponse:
        """List class queues and virtual queues, for operators."""
        return await self._answered(context, self._list_queues(context))

    def interrupt_streams(self) -> None:
        """End every open stream because the gateway stops; clients resume at another one."""
        error = unavailable("this gateway is stopping; continue with Resume at another one", STOPPING)
        for sink in tuple(self._open):
            sink.interrupt(error)

    async def _generate(self, request: pb.GenerateRequest, context: Context) -> None:
        gateway = self._gateway
        headers = _headers(context)
        if (tenant := await self._tenant(context)) is not None:
            headers[KEY_TENANT] = tenant
        attempt = _attempt(gateway, request, headers)
        if request.idempotency_key:
            headers[KEY_HEADER] = request.idempotency_key
        try:
            with refusals_recorded(attempt, gateway.metrics, gateway.spans, gateway.clock):
                self._check_size(request)
                plain = messages.to_plain(request)
                body = messages.parse(request, plain)
                prepared = await gateway.intake.prepare(
                    body, plain, headers, returns=True, default_slo=_objective(context)
                )
                attempt.id = prepared.metadata.id
                gateway.intake.reserve(prepared)  # the task that accepts it begins later
            sink = RpcSink(prepared.metadata)
            subscription = await self._finish_despite_disconnect(_accept(gateway, attempt, prepared, sink))
        except QlmError as error:
            raise messages.with_proto_names(from_qlm(error), request) from error
        except ApiError as error:
            raise messages.with_proto_names(error, request) from error
        await self._stream(context, subscription, sink, offset=0)

    async def _resume(self, request: pb.ResumeRequest, context: Context) -> None:
        record = await self._known(request.id, context)
        sink = RpcSink(record.metadata)
        grace_s = self._gateway.limits.resume_grace_stream_s
        subscription = resume(self._gateway.hub, record.metadata, sink, request.offset, grace_s)
        await self._stream(context, subscription, sink, offset=request.offset)

    async def _get(self, request: pb.GetRequest, context: Context) -> pb.GetResponse:
        record = await self._known(request.id, context)
        await context.send_initial_metadata(((_ID_HEADER, record.metadata.id),))
        members = await members_of(self._gateway.store, self._gateway.load, record)
        if (running := next((each for each in members if each.outcome is None), None)) is not None:
            for each in members:
                match_stops(self._gateway.hub, each)
            status = self._status(running)
            status.id = record.metadata.id
            return pb.GetResponse(request=status)
        finals = [await final_answer(self._gateway, each) for each in members]
        final = next((each for each in finals if not each.outcome.ok), finals[0])
        ended = replace(record, outcome=final.outcome)
        response = pb.GetResponse(request=self._status(ended))
        if final.outcome.ok:
            response.answer.CopyFrom(messages.answer(record.metadata, final))
        else:
            response.error.CopyFrom(messages.error_of(final))
        return response

    async def _cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        record = await self._known(request.id, context)
        await context.send_initial_metadata(((_ID_HEADER, record.metadata.id),))
        after = await cancel_all(self._gateway.store, record, BY_CLIENT)
        return pb.CancelResponse(request=self._status(after))

    def _status(self, record: RequestRecord) -> pb.RequestStatus:
        return messages.status_message(record, self._gateway.limits, self._gateway.clock.now_ns())

    async def _known(self, id: str, context: Context) -> RequestRecord:
        tenant = await self._tenant(context)
        return await known_request(self._gateway.store, self._gateway.load, _id(id), tenant)

    async def _tenant(self, context: Context) -> str | None:
        """Return the tenant of the API key that a call came with; None where no key is asked for.

        Raises:
            ApiError: There is no key, or it is not good for this call.
        """
        if not self._rules.keys_required:
            return None
        gateway = self._gateway
        values = partial(_values, _headers(context))
        return (await asked_key(gateway.keys, values, Scope.INFER, gateway.clock.now_ns())).tenant

    async def _list_queues(self, context: Context) -> pb.ListQueuesResponse:
        values, now_ns = partial(_values, _headers(context)), self._gateway.clock.now_ns()
        if (error := await operator_refusal(self._gateway.keys, values, self._rules, now_ns)) is not None:
            raise error
        return messages.queues_response(await list_queues(self._gateway))

    async def _stream(self, context: Context, subscription: Subscription, sink: RpcSink, offset: int) -> None:
        """Write what a session sends until it ends or the client disconnects.

        Raises:
            ApiError: The answer ended badly.
        """
        metadata, metrics = subscription.metadata, self._gateway.metrics
        fingerprint = self._gateway.models.fingerprint(metadata.answers_as)
        metrics.open_streams.inc()
        self._open.add(sink)
        try:
            await context.send_initial_metadata(((_ID_HEADER, metadata.id),))
            await context.write(
                messages.started(metadata, tier_of(metadata.slo, self._gateway.limits), offset, fingerprint)
            )
            while (message := await sink.take()) is not None:
                await context.write(message)
        except BaseException:
            self._gateway.hub.detach(subscription)
            raise
        finally:
            self._open.discard(sink)
            metrics.open_streams.dec()
        if sink.error is not None:
            raise replace(
                sink.error, headers={**sink.error.headers, **sink.trailers, _ID_HEADER: metadata.id}
            )
        context.set_trailing_metadata(tuple(sink.trailers.items()))

    async def _finish_despite_disconnect(self, accepting: Awaitable[Subscription]) -> Subscription:
        """Finish publishing a request although its client disconnects, and detach the client afterwards."""

        def detach(accepted: asyncio.Future[Subscription]) -> None:
            if not accepted.cancelled() and accepted.exception() is None:
                self._gateway.hub.detach(accepted.result())

        task = asyncio.ensure_future(accepting)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(detach)
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
            # Writing failed because the client has disconnected, which the context may not know yet.
            if context.done() or isinstance(error, aio.InternalError):
                raise asyncio.CancelledError from error
            failure = self._gateway.failed(error, "gRPC call")
        if _ID_HEADER not in failure.headers:
            failure = replace(failure, headers={**failure.headers, _ID_HEADER: self._gateway.new_id()})
        await refuse(context, failure)

    def _check_size(self, request: pb.GenerateRequest) -> None:
        bytes_max = self._gateway.limits.body_bytes_max
        if (size := request.ByteSize()) > bytes_max:
            message = f"the message has {size} bytes; expected at most {bytes_max} (limits.body_bytes_max)"
            headers = {"x-should-retry": "false"}
            raise ApiError(status=413, message=message, code="body_too_large", headers=headers)


async def _accept(gateway: Gateway, attempt: Attempt, prepared: Prepared, sink: RpcSink) -> Subscription:
    with refusals_recorded(attempt, gateway.metrics, gateway.spans, gateway.clock):
        return await gateway.intake.accept(prepared, sink, Mode.STREAM)


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
    """Return the metadata of a call by name; of several with one name, the first.

    Several of an objective that differ are one list, as over HTTP, which is no value of an objective.
    """
    headers: dict[str, str] = {}
    for name, value in context.invocation_metadata() or ():
        if not isinstance(value, str) or name.startswith(":"):
            continue
        text = value.strip()
        if name in OBJECTIVE_HEADERS and headers.get(name, text) != text:
            headers[name] += f", {text}"
        headers.setdefault(name, text)
    return headers


def _values(headers: Mapping[str, str], name: str) -> Sequence[str]:
    return [headers[name]] if name in headers else []


def _objective(context: Context) -> DeadlineSlo | None:
    """Return the call's deadline as an objective; None without one, or beyond the longest objective.

    Raises:
        ApiError: The deadline has passed.
    """
    left_s = context.time_remaining()
    if left_s is None or left_s * 1000 > DEADLINE_MAX_MS:
        return None
    if left_s * 1000 < MS_MIN:
        raise ApiError(
            status=504, message="the call's deadline passed before the call arrived", code="expired"
        )
    return DeadlineSlo(deadline_ms=left_s * 1000)


def _id(text: str) -> RequestId:
    if not text:
        raise invalid("id", 'id is ""; expected the id of a request', "missing_required_parameter")
    return request_id(text)
